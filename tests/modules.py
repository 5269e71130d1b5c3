"""Kernel modules that few containers have: tests that need some carry the marker `modules`.

    @pytest.mark.modules("wireguard")

Where the kernel has no such module the test is skipped; `make vm-test` runs all tests with the marker in a machine
that has each of them (tests/vm.py), and there it is an error if one is missing.
"""

import shlex
import subprocess
from functools import cache
from typing import Final

import pytest

from lab.vm import is_guest

PROBES: Final = {
    "dummy": "ip link add probe type dummy",
    "esp4": "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x100 mode tunnel aead rfc4106(gcm(aes)) "
    f"0x{'00' * 20} 128",
    "fou": "ip fou add port 8285 ipproto 4",
    "ebt_ip": "ebtables -A INPUT -p IPv4 --ip-src 192.0.2.1 -j DROP",
    "ebt_ip6": "ebtables -A INPUT -p IPv6 --ip6-proto udp -j DROP",
    "ip_set": "ipset create probe hash:net",
    "ip_set_bitmap_port": "ipset create probe bitmap:port range 0-65535",
    "ip_set_hash_netiface": "ipset create probe hash:net,iface",
    "ipip": "ip link add probe type ipip local 192.0.2.1",
    "netem": "tc qdisc add dev lo root netem delay 1ms",
    "nf_tables_bridge": "nft table bridge t { chain c { type filter hook input priority 0 ; } ; }",
    "nf_tables_egress": "nft table netdev t { chain c { type filter hook egress device lo priority 0 ; } ; }",
    "nft_fwd_netdev": "nft table netdev t { chain c { type filter hook ingress device lo priority 0 ; "
    "fwd to lo ; } ; }",
    "nft_connlimit": "nft table ip t { chain c { type filter hook input priority 0 ; ct count over 9 ; } ; }",
    "nft_numgen": "nft table ip t { chain c { type filter hook input priority 0 ; numgen inc mod 2 0 ; } ; }",
    "nft_queue": "nft table inet t { chain c { type filter hook postrouting priority 0 ; queue num 100 ; } ; }",
    "nft_quota": "nft table ip t { chain c { type filter hook input priority 0 ; quota over 9 mbytes ; } ; }",
    "nft_tproxy": "nft table ip t { chain c { type filter hook prerouting priority 0 ; "
    "meta l4proto tcp tproxy to :1 ; } ; }",
    "sch_ingress": "tc qdisc add dev lo clsact",
    "sch_tbf": "tc qdisc add dev lo root tbf rate 1mbit burst 10kb latency 50ms",
    "wireguard": "ip link add probe type wireguard",
    "xt_NETMAP": "iptables-legacy -t nat -A PREROUTING -j NETMAP --to 192.0.2.0/24",
    "xt_TPROXY": "iptables-legacy -t mangle -A PREROUTING -p tcp -j TPROXY --on-port 1",
    "xt_CT": "iptables-nft -t raw -A PREROUTING -j CT --notrack",
    "xt_NFQUEUE": "iptables-legacy -A INPUT -j NFQUEUE --queue-num 0",
    "xt_bpf": "iptables-legacy -A INPUT -m bpf --bytecode '1,6 0 0 1'",
    "xt_connbytes": "iptables-legacy -A INPUT -m connbytes --connbytes 9: --connbytes-mode bytes "
    "--connbytes-dir both",
    "xt_connlimit": "iptables-legacy -A INPUT -p tcp -m connlimit --connlimit-above 9",
    "xt_connmark": "iptables-legacy -A INPUT -m connmark --mark 5",
    "xt_devgroup": "iptables-legacy -A INPUT -m devgroup --src-group 1",
    "xt_dscp": "iptables-legacy -A INPUT -m dscp --dscp 0x2e",
    "xt_iprange": "iptables-legacy -A INPUT -m iprange --src-range 192.0.2.1-192.0.2.2",
    "xt_length": "iptables-legacy -A INPUT -m length --length 100:200",
    "xt_limit": "iptables-legacy -A INPUT -m limit --limit 1/s",
    "xt_mac": "iptables-nft -A INPUT -m mac --mac-source 02:00:00:00:00:99",
    "xt_multiport": "iptables-legacy -A INPUT -p udp -m multiport --dports 1,2",
    "xt_owner": "iptables-legacy -A OUTPUT -m owner --uid-owner 0",
    "xt_physdev": "iptables-nft -A FORWARD -m physdev --physdev-out tap0 --physdev-is-bridged",
    "xt_quota": "iptables-legacy -A INPUT -m quota --quota 9",
    "xt_set": "sh -c 'ipset create probe hash:net && iptables-nft -A INPUT -m set --match-set probe src'",
    "xt_statistic": "iptables-legacy -A INPUT -m statistic --mode random --probability 0.5",
    "xt_tcpmss": "iptables-legacy -A INPUT -p tcp --syn -m tcpmss --mss 1:9",
    "xt_time": "iptables-legacy -A INPUT -m time --timestart 00:00 --timestop 23:59",
}
"""A command for each module, which fails without it; it is run in a namespace of its own."""


@cache
def has_module(name: str) -> bool:
    """Whether the kernel has the module, or loads it."""
    command = ["unshare", "--net", *shlex.split(PROBES[name])]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def require_modules(item: pytest.Item) -> None:
    """Skips a test where the kernel lacks a module that its marker names."""
    need_modules(*(name for marker in item.iter_markers("modules") for name in marker.args))


def need_modules(*names: str) -> None:
    """Skips a test, which runs in the VM only if it has the marker, where the kernel lacks a module."""
    if missing := [name for name in names if not has_module(name)]:
        words = " ".join(missing)
        if is_guest():
            pytest.fail(f"the VM's kernel has no {words}")
        pytest.skip(f"this kernel has no {words}: `modprobe -a {words}`, or `make vm-test`, which has all modules")
