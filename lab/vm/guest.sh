#!/bin/sh
# The first process of the guest: busybox runs it with the directory of this run. It makes a root directory of the
# machine's files under a layer in memory, starts again there, runs the command, writes its exit code into the
# directory, and switches the guest off.
# DIRECTORY/settings, a shell script, has `modules`, `terminal`, and the functions `each_layer`, `each_share`, `run`.

place=$1
stage=$2
memory=/proc # the one directory that every machine has and that is not needed yet
new=$memory/new

box() { "$place/busybox" "$@"; }
hostfs() { box mkdir -p "$2" && box mount -t hostfs -o "$1" none "$2"; }

stop() {
    echo "vm: $*" >/dev/console
    box poweroff -f
}

add_layer() { # DIRECTORY: overlayfs refuses a layer within another, so each is a mount of its own
    count=$((count + 1))
    hostfs "$1" "$memory/layer$count" || stop "$1 cannot be mounted"
    lower=$lower$memory/layer$count:
}

add_share() { hostfs "$1" "$new$1" || stop "$1 cannot be shared"; }

outside() {
    . "$place/settings"
    box mount -t tmpfs -o size=75% memory $memory || stop "there is no memory"
    box mkdir $memory/upper $memory/work $new
    each_layer add_layer
    box mount -t overlay -o "lowerdir=$lower/,upperdir=$memory/upper,workdir=$memory/work" root $new ||
        stop "the layers cannot be mounted"
    for directory in dev proc run sys; do box mkdir -p $new/$directory; done
    box mount -t devtmpfs dev $new/dev
    box mount -t proc proc $new/proc
    box mount -t sysfs sys $new/sys
    box mount -t tmpfs -o mode=755 run $new/run
    box mkdir -p $new/run/lock $new/run/vm/bin $new/run/vm/old
    box cp "$place/busybox" $new/run/vm/bin
    each_share add_share
    cd $new && box pivot_root . run/vm/old || stop "the root directory cannot be changed"
    exec /run/vm/bin/busybox chroot . /run/vm/bin/busybox sh "$place/guest.sh" "$place" inside
}

inside() {
    /run/vm/bin/busybox --install -s /run/vm/bin
    export PATH=/run/vm/bin:/usr/sbin:/usr/bin
    mkdir -p /dev/pts /dev/shm
    mount -t devpts -o gid=5,mode=620,ptmxmode=666 pts /dev/pts
    mount -t tmpfs shm /dev/shm
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    ln -sf /proc/self/fd /dev/fd
    for number in 0:stdin 1:stdout 2:stderr; do ln -sf "/proc/self/fd/${number%:*}" "/dev/${number#*:}"; done
    hostname vm
    ip link set lo up
    . "$place/settings"
    # shellcheck disable=SC2086  # a list of words
    /usr/sbin/modprobe -aq $modules
    if [ -n "$terminal" ]; then
        # shellcheck disable=SC2016  # another shell, with `rows 40 cols 120` as its terminal's size
        setsid -c sh -c '. "$0/settings"; stty $terminal; run' "$place" </dev/tty0 >/dev/tty0 2>&1
        code=$?
    else
        # Through pipes, since the kernel's consoles are terminals and the command's output shall be none.
        mkfifo /run/vm/out /run/vm/err
        for console in /dev/tty0 /dev/tty1; do stty -opost <$console; done
        cat /run/vm/out >/dev/tty0 &
        cat /run/vm/err >/dev/tty1 &
        (run) </dev/null >/run/vm/out 2>/run/vm/err
        code=$?
        wait
    fi
    echo $code >"$place/code"
    echo 0 >/proc/sys/kernel/printk # the last words of the kernel would be on the command's output
    poweroff -f
}

$stage
