from ipaddress import IPv4Address, IPv4Interface, IPv6Address, ip_interface

from lab.topology import (
    Host,
    addresses,
    narrow_path,
    network_of,
    network_v6_of,
    pod,
    pod_address,
    underlay,
    underlay_v6,
)
from tests import paths

GOLDEN = paths.GOLDEN / "lab"


def test_two_hosts_and_the_outside_host_are_wired_as_ip_commands() -> None:
    text = "\n".join(map(str, underlay((Host(1), Host(2)))))
    assert text == (GOLDEN / "underlay.txt").read_text()


def test_a_pod_gets_the_address_after_the_gateway_and_the_overlays_mtu() -> None:
    gateway = IPv4Interface("10.5.52.1/24")
    assert pod_address(gateway) == IPv4Address("10.5.52.2")
    text = "\n".join(map(str, pod(Host(2), [gateway], 1450)))
    assert text == (GOLDEN / "pod.txt").read_text()


def test_each_network_of_a_host_has_its_own_bridge_and_pod() -> None:
    text = "".join(map(str, pod(Host(2), [IPv4Interface("10.6.52.1/24")], 1450, "red")))
    for command in (
        "ip -n h2 address add 10.6.52.1/24 dev cni1",
        "ip -n h2 link add veth1 mtu 1450 type veth peer name eth0 mtu 1450 netns pod2-red",
        "ip -n pod2-red route add default via 10.6.52.1",
    ):
        assert f"{command}\n" in text
    assert "ip netns add pod2-red\n" in str(underlay((Host(2),), ("blue", "red"))[0])


def test_a_narrow_path_drops_larger_packets_between_even_and_odd_hosts_in_both_directions() -> None:
    assert narrow_path([Host(number) for number in (1, 2, 3)], 1400) == (
        "table bridge middle { chain path { type filter hook forward priority 0; "
        "iifname { h2 } oifname { h1, h3 } meta length > 1400 drop; "
        "iifname { h1, h3 } oifname { h2 } meta length > 1400 drop; }; }"
    )


def test_the_last_host_still_has_an_address_in_the_underlay() -> None:
    assert Host(200).address == IPv4Address("10.99.0.210")


def test_ipv6_is_beside_it_and_waits_for_no_duplicate_address_detection() -> None:
    assert Host(200).address_of(6) == IPv6Address("fd00:99::210")
    commands = [line for batch in underlay_v6((Host(1), Host(2))) for line in str(batch).splitlines()]
    assert "ip -n h2 address add fd00:99::12/64 dev eth0 nodad" in commands
    assert "ip -n h2 route add default via fd00:99::1 dev eth0" in commands
    gateways = [ip_interface("10.5.52.1/24"), ip_interface("fd00:10:5:34::1/64")]
    text = "\n".join(map(str, pod(Host(2), gateways, 1430)))
    assert "ip -n pod2 address add 10.5.52.2/24 dev eth0\n" in text
    assert "ip -n pod2 address add fd00:10:5:34::2/64 dev eth0 nodad\n" in text
    assert "ip -n pod2 route add default via fd00:10:5:34::1\n" in text


def test_a_host_that_is_plugged_in_again_has_the_addresses_of_before() -> None:
    first = [str(batch) for batch in (*underlay((Host(1),)), *underlay_v6((Host(1),)))]
    for versions in ((4,), (4, 6)):
        assert all(str(batch) in first for batch in addresses(Host(1), versions))
    assert "".join(map(str, addresses(Host(1), (6,)))).endswith("ip -n h1 address delete 10.99.0.11/16 dev eth0\n")


def test_a_second_cluster_has_an_underlay_of_its_own_and_a_router_between() -> None:
    hosts = Host(1), Host(2, cluster=2)
    text = "".join(map(str, (*underlay(hosts), *underlay_v6(hosts))))
    for command in (
        "ip link add outside2 type veth peer name eth1 netns outside",
        "ip link set h1 master underlay up",
        "ip link set h2 master underlay2 up",
        "ip -n outside address add 10.98.0.1/16 dev eth1",
        "ip -n h2 address add 10.98.0.12/16 dev eth0",
        "ip -n h2 route add default via 10.98.0.1",
        "ip -n outside address add fd00:98::1/64 dev eth1 nodad",
        "ip -n h2 address add fd00:98::12/64 dev eth0 nodad",
    ):
        assert f"{command}\n" in text
    assert (str(network_of(2)), str(network_v6_of(2))) == ("10.6.0.0/16", "fd00:10:6::/48")
