from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

from lab.topology import Host, pod, pod_address, underlay

GOLDEN = Path(__file__).parent.parent / "golden" / "lab"


def test_two_hosts_and_the_outside_host_are_wired_as_ip_commands() -> None:
    text = "\n".join(map(str, underlay((Host(1), Host(2)))))
    assert text == (GOLDEN / "underlay.txt").read_text()


def test_a_pod_gets_the_address_after_the_gateway_and_the_overlays_mtu() -> None:
    gateway = IPv4Interface("10.5.52.1/24")
    assert pod_address(gateway) == IPv4Address("10.5.52.2")
    text = "\n".join(map(str, pod(Host(2), gateway, 1450)))
    assert text == (GOLDEN / "pod.txt").read_text()


def test_the_last_host_still_has_an_address_in_the_underlay() -> None:
    assert Host(200).address == IPv4Address("10.99.0.210")
