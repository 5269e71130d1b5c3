"""What `doctor --fix` takes for safe: exactly the cures that it knows, whoever wrote them."""

import pytest

from services.ctl.connect.targets import Target
from services.ctl.diagnose.fixes import is_safe, obstacle_to


@pytest.mark.parametrize(
    ("check", "cure"),
    [
        ("", "sysctl -w net.ipv4.ip_forward=1"),
        ("", "sysctl -w net.ipv6.conf.all.forwarding=1"),
        ("forwarding-off", "sysctl -w net.ipv4.conf.cni0.forwarding=1"),
        ("forwarding-off", "sysctl -w net/ipv4/conf/eth0.7/forwarding=1"),
        ("peer-return", "sysctl -w net.ipv4.conf.eth0.rp_filter=2"),
        ("bridge-down", "ip link set cni0 up"),
        ("bridge-address", "ip addr add 10.5.27.1/24 dev cni0"),
        ("bridge-address", "ip -6 addr add fd00:10:5:34::1/64 dev cni0"),
        ("bridge-route", "ip route add 10.5.27.0/24 dev cni0 proto kernel src 10.5.27.1"),
        ("peer-checksum", "ethtool -K flannel.1 tx-checksum-ip-generic off"),
        ("peer-checksum", "ethtool -K fl-wg6-storage tx-checksum-ip-generic off"),
        (
            "peer-checksum",
            "ethtool -K flannel.1 tx-checksum-ip-generic off && ethtool -K flannel-v6.1 tx-checksum-ip-generic off",
        ),
    ],
)
def test_a_sysctl_that_the_overlay_needs_and_what_the_bridge_has_lost_is_safe(check: str, cure: str) -> None:
    assert is_safe(check, cure)


@pytest.mark.parametrize(
    ("check", "cure"),
    [
        ("", ""),
        ("", "sysctl -w net.ipv4.ip_forward=0"),
        ("", "sysctl -w kernel.core_pattern=1"),
        ("", "sysctl -w net/ipv4/conf/../../../kernel/sysrq/forwarding=1"),
        ("", "sysctl -w net/ipv4/conf/../forwarding=1"),
        ("", "sysctl -w net.ipv4.ip_forward=1; reboot"),
        ("", "sysctl -w net.ipv4.ip_forward=1\nreboot"),
        ("", "modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1"),
        ("", "iptables-nft -t filter -I INPUT -p udp --dport 8472 -j ACCEPT"),
        ("peer-route", "ip rule del priority 100 from all to 10.5.53.0/24 blackhole"),
        ("peer-route", "ip link set cni0 up"),
        ("bridge-down", "ip link set cni0 down"),
        ("bridge-down", "ip link set -all up"),
        ("bridge-address", "ip addr add 10.5.27.1/24 dev cni0 && ip addr del 10.5.9.1/24 dev cni0"),
        ("bridge-route", "ip route del 10.5.27.0/26 dev eth0"),
        ("bridge-route", "ip route add default dev eth0"),
        ("peer-checksum", "ethtool -K eth0 tx off"),
        ("peer-checksum", "ethtool -K eth0 tx-checksum-ip-generic off"),
        ("peer-checksum", "ethtool -K flannel.1 tx-checksum-ip-generic off && reboot"),
    ],
)
def test_everything_else_is_advice(check: str, cure: str) -> None:
    assert not is_safe(check, cure)


def test_a_service_over_tcp_may_be_anywhere() -> None:
    assert "another host" in obstacle_to(Target("masq", "127.0.0.1:9473"))
