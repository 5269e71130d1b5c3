#!/bin/sh
# A node, from its first process on: node.sh STAGE PLACE ROOT. PLACE has what is the node's own, ROOT is the root
# directory that all nodes have below their own files.
#
#   enter  the process goes into the node's cgroups, PLACE/cgroups, a line each: what it is mounted with, the directory
#   boot   the file systems of the node
#   serve  containerd and the kubelet, each started again when it ends
set -eu

stage=$1
place=${2:-}
lower=${3:-}

enter() {
    while read -r _ directory; do echo 0 >"$directory/cgroup.procs"; done <"$place/cgroups"
    exec unshare --cgroup sh "$0" boot "$place" "$lower"
}

# The kubelet ends where these have other values and it cannot set them. They are the machine's: it gets files.
pretend() {
    mkdir -p "$place/sysctl"
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        name=${setting%=*}
        [ -e "/proc/sys/$name" ] || continue
        file=$place/sysctl/$(basename "$name")
        echo "${setting#*=}" >"$file"
        mount --bind "$file" "$root/proc/sys/$name"
    done
    # The kubelet ends without a clock speed too; user-mode Linux says none.
    if ! grep -q "^cpu MHz" /proc/cpuinfo; then
        sed 's/^processor.*/&\ncpu MHz\t\t: 1000.000/' /proc/cpuinfo >"$place/cpuinfo"
        mount --bind "$place/cpuinfo" "$root/proc/cpuinfo"
    fi
    cat /proc/sys/kernel/random/uuid >"$place/boot_id"
    mount --bind "$place/boot_id" "$root/proc/sys/kernel/random/boot_id"
}

mount_cgroups() {
    read -r what _ <"$place/cgroups"
    if [ "$what" = cgroup2 ]; then
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
        # Controllers are for the children of a group only that has no processes of its own.
        mkdir -p "$root/sys/fs/cgroup/init"
        echo 0 >"$root/sys/fs/cgroup/init/cgroup.procs"
        for each in $(cat "$root/sys/fs/cgroup/cgroup.controllers"); do
            echo "+$each" >"$root/sys/fs/cgroup/cgroup.subtree_control"
        done
        return
    fi
    mount -t tmpfs -o mode=755 cgroups "$root/sys/fs/cgroup"
    while read -r what _; do
        at=$root/sys/fs/cgroup/${what#name=}
        mkdir "$at"
        case $what in name=*) what=none,$what ;; esac
        mount -t cgroup -o "$what" cgroup "$at"
    done <"$place/cgroups"
}

make_devices() {
    mount -t tmpfs -o mode=755 dev "$root/dev"
    for device in null zero full random urandom tty kmsg fuse net/tun; do
        [ -e "/dev/$device" ] || continue
        mkdir -p "$root/dev/$(dirname "$device")"
        touch "$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 pts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    mount -t mqueue mqueue "$root/dev/mqueue"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
}

boot() {
    root=$place/root
    mount -t overlay -o "lowerdir=$lower,upperdir=$place/upper,workdir=$place/work" node "$root"
    for each in containerd kubelet; do # containerd mounts overlays there, which cannot lie on another
        mkdir -p "$root/var/lib/$each"
        mount --bind "$place/$each" "$root/var/lib/$each"
    done
    mount -t proc proc "$root/proc"
    pretend
    mount -t sysfs sys "$root/sys"
    mount_cgroups
    make_devices
    mount -t tmpfs -o mode=755 run "$root/run"
    mount -t tmpfs -o mode=1777 tmp "$root/tmp"
    mkdir -p "$root/run/lock" "$root/mnt/old"
    hostname "$(cat "$place/upper/etc/hostname")"
    cd "$root"
    pivot_root . mnt/old
    umount -l /mnt/old
    mount --make-rshared / # the kubelet's mounts are to be seen in containers
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        tini -- sh /usr/local/sbin/node.sh serve
}

# shellcheck disable=SC2086  # a list of words
run_kubelet() {
    . /var/lib/kubelet/kubeadm-flags.env
    kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf \
        --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf $KUBELET_KUBEADM_ARGS
}

serve() {
    while :; do
        containerd >>/var/log/containerd.log 2>&1 || true
        sleep 1
    done &
    while :; do # kubeadm writes both files, then waits for a kubelet
        if [ -e /var/lib/kubelet/kubeadm-flags.env ] && [ -e /var/lib/kubelet/config.yaml ]; then
            run_kubelet >>/var/log/kubelet.log 2>&1 || true
        fi
        sleep 0.5
    done
}

"$stage"
