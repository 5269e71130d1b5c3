"""The names of overlay devices on a host with several networks, and the ports of their tunnels."""

import pytest

from flannelette.services.core.backend_types import UDP_DEVICE, WIREGUARD_DEVICE, WIREGUARD_DEVICE_V6
from flannelette.services.core.network import parse_network

ALL = (WIREGUARD_DEVICE, WIREGUARD_DEVICE_V6, UDP_DEVICE)
NETWORK = '{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:5::/48", "Backend": %s}'


@pytest.mark.parametrize(
    ("suffix", "names"),
    [
        ("", ["flannel-wg", "flannel-wg-v6", "flannel0"]),
        ("-blue", ["fl-wg-blue", "fl-wg6-blue", "fl-udp-blue"]),
        ("-eight888", ["fl-wg-eight888", "fl-wg6-eight888", "fl-udp-eight888"]),
        ("-storage-cluster", ["fl-wg.5991bd8d", "fl-wg6.5991bd8d", "fl-udp.5991bd8d"]),
    ],
)
def test_a_network_without_a_name_has_flannels_devices_and_another_one_its_own(suffix: str, names: list[str]) -> None:
    assert [each.of(suffix) for each in ALL] == names
    assert all(len(name) <= 15 for name in names)
    assert [[each.is_one(name) for each in ALL] for name in names] == [[i == j for j in range(3)] for i in range(3)]


def test_no_two_networks_share_a_device() -> None:
    suffixes = ["", "-6", "-wg", "-wg6", "-v6", "-a", "-6-a", *(f"-{'x' * n}" for n in range(1, 16)), "-5991bd8d"]
    suffixes += ["-storage-cluster", "-storage-clustet"]
    names = [each.of(suffix) for each in ALL for suffix in dict.fromkeys(suffixes)]
    assert len(set(names)) == len(names)


def test_devices_of_others_are_nobodys() -> None:
    foreign = ("wg0", "fl-wg", "fl-wg7-blue", "flannel-wg0", "flannel.1", "fl-udp", "flannel1")
    assert not any(each.is_one(name) for each in ALL for name in foreign)


@pytest.mark.parametrize(
    ("backend", "devices", "ports"),
    [
        ('{"Type": "wireguard"}', {4: "fl-wg-red", 6: "fl-wg6-red"}, (51820, 51821)),
        ('{"Type": "wireguard", "Mode": "auto", "ListenPort": 7}', {4: "fl-wg-red", 6: "fl-wg-red"}, (7, 7)),
        ('{"Type": "vxlan", "VNI": 2}', {4: "flannel.2", 6: "flannel-v6.2"}, (8472, 8472)),
    ],
)
def test_a_tunnel_is_that_of_the_network(backend: str, devices: dict[int, str], ports: tuple[int, int]) -> None:
    tunnel = parse_network(NETWORK % backend).tunnel("-red")
    assert tunnel is not None
    assert (tunnel.devices, (tunnel.port_of(4), tunnel.port_of(6))) == (devices, ports)
