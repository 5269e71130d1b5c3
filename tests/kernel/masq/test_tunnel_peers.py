"""The peers of a tunnel, as masq reads them from the kernel: a cure of a firewall names these and no others."""

import pytest

from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import surroundings
from tests.hosts.masq import Host

PSK = f'"PSK":"{"0123456789abcdef" * 6}"'
UNDERLAY = (
    "ip link add eth0 type veth peer name far && ip link set eth0 up && ip link set far up && "
    "ip addr add 10.99.0.11/16 dev eth0 && ip addr add fd00:99::11/64 dev eth0 nodad"
)
POLICY = (
    "ip xfrm policy add src 10.5.27.0/24 dst 10.5.{0}.0/24 dir {1} priority {2} "
    "tmpl src {3} dst {4} proto esp mode tunnel reqid {5}"
)
OURS = 0x666C
TUN = "ip tuntap add {0} mode tun && ip link set {0} up"
VIA = "ip route add 10.5.{1}.0/24 via 10.99.0.{2} dev {0} onlink"
WIREGUARD = (
    "ip link add {0} type wireguard && wg set {0} private-key /dev/stdin <{3} && "
    "wg set {0} peer $(printf %043d {1} | sed s/.$/E/)= endpoint {2}"
)


def ipsec(*policies: tuple[object, ...]) -> str:
    """A device that stands for the dummy one, which not every kernel has."""
    return " && ".join(["ip link add flannel.ipsec type bridge", *(POLICY.format(*each) for each in policies)])


@pytest.mark.parametrize(
    ("backend", "suffix", "act", "peers"),
    [
        pytest.param(
            '"Type":"vxlan"',
            "",
            "ip link add flannel.1 type vxlan id 1 dev eth0 dstport 8472 nolearning && ip link set flannel.1 up && "
            "bridge fdb append 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 && "
            "ip route add 10.5.53.0/24 via 10.5.53.0 dev flannel.1 onlink",
            ["10.99.0.12"],
            id="vxlan",
        ),
        pytest.param(
            '"Type":"vxlan","DirectRouting":true',
            "",
            "ip link add flannel.1 type vxlan id 1 dev eth0 dstport 8472 nolearning && "
            "bridge fdb append 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 && "
            "ip route add 10.5.77.0/24 via 10.99.0.13",
            ["10.99.0.12"],
            id="vxlan, one peer of which is reached directly",
        ),
        pytest.param(
            '"Type":"udp","Mode":"user"',
            "",
            " && ".join((TUN.format("flannel0"), VIA.format("flannel0", 53, 12), VIA.format("flannel0", 77, 13))),
            ["10.99.0.12", "10.99.0.13"],
            id="udp in user space",
        ),
        pytest.param(
            '"Type":"udp"',
            "-blue",
            " && ".join((TUN.format("fl-udp-blue"), VIA.format("fl-udp-blue", 53, 12))),
            ["10.99.0.12"],
            id="udp of a network with a name, whichever way the kernel has",
        ),
        pytest.param(
            f'"Type":"ipsec",{PSK}',
            "",
            ipsec(
                (53, "out", OURS, "10.99.0.11", "10.99.0.12", 11),
                (53, "in", OURS, "10.99.0.12", "10.99.0.11", 11),
                (54, "out", 5, "10.99.0.11", "10.99.0.77", 11),
                (55, "out", OURS, "10.99.0.11", "10.99.0.78", 12),
            ),
            ["10.99.0.12"],
            id="ipsec, beside other tunnels",
        ),
        pytest.param(
            '"Type":"wireguard"',
            "",
            " && ".join(
                (
                    WIREGUARD.format("flannel-wg", 1, "10.99.0.12:51820", "{key}"),
                    WIREGUARD.format("flannel-wg-v6", 2, "[fd00:99::12]:51821", "{key}"),
                    "wg set flannel-wg peer $(printf %043d 3 | sed s/.$/I/)= allowed-ips 10.5.77.0/24",
                )
            ),
            ["10.99.0.12", "fd00:99::12"],
            id="wireguard, one peer of which has no endpoint",
            marks=pytest.mark.modules("wireguard"),
        ),
    ],
)
def test_a_host_knows_the_peers_of_each_backend(
    backend: str, suffix: str, act: str, peers: list[str], host: Host
) -> None:
    host.run("sh", "-euc", UNDERLAY)
    key = host.lock.with_name("key")
    key.write_text("QEHkPMcz51xF5l5iLvLlxpNBkKvrxlVPMvC4ZkpCrl0=\n")
    host.run("sh", "-euc", act.replace("{key}", str(key)))
    ranges = '"Network":"10.5.0.0/16"' + (
        ',"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48"' if "wireguard" in backend else ""
    )
    network = parse_network(f'{{{ranges},"Backend":{{{backend}}}}}')
    found = surroundings(network, (), suffix).peers
    assert [str(each.address) for each in found] == peers
    assert {each.device for each in found} == {"eth0"}


_STATE = (
    "ip xfrm state add src {0} dst {1} proto esp spi {2} reqid 11 mode tunnel {3} "
    'aead "rfc4106(gcm(aes))" 0x0000000000000000000000000000000000000000 128'
)


@pytest.mark.modules("esp4")
def test_a_host_knows_to_which_peers_ipsec_goes_past_a_nat(host: Host) -> None:
    host.run("sh", "-euc", UNDERLAY)
    peers = [f"10.99.0.{last}" for last in (12, 13, 14)]
    policies = [(last, "out", OURS, "10.99.0.11", peer, 11) for last, peer in zip((53, 54, 55), peers, strict=True)]
    host.run("sh", "-euc", ipsec(*policies))
    in_udp = "encap espinudp 4500 61000 0.0.0.0"
    for state in (
        _STATE.format(peers[0], "10.99.0.11", 0x101, in_udp),
        _STATE.format("10.99.0.11", peers[0], 0x102, in_udp),
        _STATE.format("10.99.0.11", peers[1], 0x103, ""),
    ):
        host.run("sh", "-euc", state)
    network = parse_network(f'{{"Network":"10.5.0.0/16","Backend":{{"Type":"ipsec",{PSK}}}}}')
    assert [each.is_past_nat for each in surroundings(network, (), "").peers] == [True, False, None]
