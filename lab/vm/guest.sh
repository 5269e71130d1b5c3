#!/bin/busybox sh
# The first process of the guest. It starts in the archive that the kernel unpacks, mounts the files of the machine
# outside, read-only under a layer in memory, as the new root directory, and starts again there. Then it runs the
# command, writes its exit code to the status port, and switches the guest off.
# /vm/settings, a shell script, has `layers`, `modules`, `terminal`, and the functions `shares` and `run`.

mount_9p() { # TAG DIRECTORY OPTIONS
    mkdir -p "$2" && mount -t 9p -o "trans=virtio,version=9p2000.L,msize=524288,$3" "$1" "$2"
}

stop() {
    echo "vm: $*" >/dev/console
    poweroff -f
}

outside() {
    /bin/busybox --install -s /bin
    mkdir -p /dev /proc /sys /memory /new
    mount -t devtmpfs dev /dev
    mount -t proc proc /proc
    mount -t sysfs sys /sys
    for module in /modules/*; do insmod "$module"; done
    . /vm/settings
    mount_9p machine /machine ro,cache=loose || stop "the machine's files cannot be mounted"
    mount_9p cache /cache ro,cache=loose || stop "the cache cannot be mounted"
    mount -t tmpfs -o size=75% memory /memory
    mkdir /memory/upper /memory/work
    mount -t overlay -o "lowerdir=$layers:/machine,upperdir=/memory/upper,workdir=/memory/work" root /new ||
        stop "the layers cannot be mounted"
    mkdir -p /new/dev /new/proc /new/run /new/sys
    mount -t tmpfs -o mode=755 run /new/run
    mkdir -p /new/run/lock /new/run/vm/bin
    cp /vm/* /new/run/vm
    cp /bin/busybox /new/run/vm/bin
    for place in dev proc sys; do mount --move /$place /new/$place; done
    exec switch_root /new /run/vm/bin/busybox sh /run/vm/guest.sh inside
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
    . /run/vm/settings
    # shellcheck disable=SC2086  # a list of words
    /usr/sbin/modprobe -aq $modules
    shares || stop "a shared directory cannot be mounted"
    port=$(echo /dev/vport*p1)
    port=${port%1}
    echo up >"${port}3"
    if [ -n "$terminal" ]; then
        # shellcheck disable=SC2016  # another shell, with `rows 40 cols 120` as its terminal's size
        setsid -c sh -c '. /run/vm/settings; stty $terminal; run' </dev/hvc0 >/dev/hvc0 2>&1
    else
        (run) </dev/null >"${port}1" 2>"${port}2"
    fi
    code=$?
    sync
    echo "exit $code" >"${port}3"
    poweroff -f
}

if [ "${1:-}" = inside ]; then inside; else outside; fi
