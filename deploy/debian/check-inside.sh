#!/bin/sh
# In an empty Debian with the packages, in a network namespace of its own: the services, each with its unit's user and rights.
set -eu

systemd-analyze verify --man=no /lib/systemd/system/flannelette.target /lib/systemd/system/flannelette-*.service
for program in flannelette flannelette-lease flannelette-dataplane flannelette-masq; do
    "$program" --version
    "$program" --help >/dev/null
done
test -s /usr/share/man/man1/flannelette.1.gz
test -s /usr/share/man/man8/flannelette-lease.8.gz
test -s /usr/share/bash-completion/completions/flannelette

cat >>/etc/flannelette/flannelette.env <<'END'
FLANNELD_STORE=embedded
FLANNELD_NET_CONFIG_PATH=/tmp/net-conf.json
FLANNELD_IP_MASQ=true
FLANNELD_IFACE=eth0
FLANNELD_HEALTHZ_PORT=0
END
echo '{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}' >/tmp/net-conf.json

# unit NAME: what systemd would make of it.
unit() {
    said() { sed -n "s/^$1=//p" "/lib/systemd/system/flannelette-$name.service" | tail -n 1; }
    name=$1
    user=$(said User) state=$(said StateDirectory) rights= ambient=
    for right in $(said CapabilityBoundingSet | tr 'A-Z' 'a-z'); do rights=$rights,+${right#cap_}; done
    [ -z "$(said AmbientCapabilities)" ] || ambient=$rights
    group=$(said Group) groups=$(said SupplementaryGroups)
    groups=${groups:+--groups=$groups}
    install -d -o "$user" -g "$group" -m 0700 "/var/lib/$state"
    (
        set -a
        . /etc/flannelette/flannelette.env
        eval "$(said Environment)"
        umask "$(said UMask)"
        # shellcheck disable=SC2046  # a list of words
        exec setpriv --reuid="$user" --regid="$group" "${groups:---clear-groups}" --bounding-set="-all$rights" \
            --inh-caps="-all$ambient" --ambient-caps="-all$ambient" --no-new-privs $(said ExecStart)
    ) >"/tmp/$name.log" 2>&1 &
    eval "$name=$!"
}
lease='' dataplane='' masq=''
for each in lease dataplane masq; do unit "$each"; done
attempt=0
until flannelette wait --ready >/tmp/wait.log 2>&1; do # it does not wait for the first socket
    attempt=$((attempt + 1))
    [ "$attempt" -lt 120 ] || { cat /tmp/*.log && exit 1; }
    sleep 1
done
flannelette status
grep FLANNEL_SUBNET /run/flannel/subnet.env
kill "$lease" "$dataplane" "$masq"
wait
# Libraries of stores that need a server.
/usr/lib/flannelette/bin/python -c "import flannelette.services.lease.stores.etcd.store, flannelette.services.lease.stores.kube.store, kubernetes.aio.config"
