"""What is found of pods where this machine cannot show it: VLANs, other programs, what CNI has on record."""

import base64
import json
from dataclasses import replace
from ipaddress import IPv4Network, ip_address
from pathlib import Path

import pytest

from flannelette.services.core.conditions import SOON, WARNING, Condition
from flannelette.services.core.family import IPV4
from flannelette.services.core.pod_addresses import CniPod, CniPods, Reservation
from flannelette.services.dataplane.diagnose.host_programs import HostFiles, managers_of
from flannelette.services.dataplane.diagnose.paths import check_routes
from flannelette.services.dataplane.diagnose.pods import check_addresses, check_pods, mendings
from flannelette.services.dataplane.diagnose.seen import (
    BridgePort,
    HostAddress,
    HostLink,
    KernelSnapshot,
    NeighbourState,
    Subject,
)
from flannelette.services.dataplane.netlink.objects import RTN_BLACKHOLE, Route
from flannelette.services.dataplane.netlink.uapi import NUD_REACHABLE
from flannelette.services.dataplane.underlay import Underlay
from flannelette.services.runtime.os.cni_state import cni_pods

OWN = IPv4Network("10.5.1.0/24")
SUBJECT = Subject(
    {IPV4: IPv4Network("10.5.0.0/16")},
    {IPV4: OWN},
    Underlay(1, "eth0", 1500, (), (), ""),
    {},
    0,
    frozenset(),
    (),
    list,
    [],
)
CNI0 = HostLink(5, "cni0", "bridge")
POD = CniPod((ip_address("10.5.1.2").packed,), "cni0", "veth1")
VETH1 = HostLink(7, "veth1", "veth", master=5, is_apart=True, port=BridgePort())
VETH2 = HostLink(8, "veth2", "veth", master=5, is_apart=True, port=BridgePort())


def seen(*links: HostLink, pods: tuple[CniPod, ...] = (POD,), bridge: HostLink = CNI0) -> KernelSnapshot:
    every = {each.index: each for each in (bridge, *links)}
    held = HostAddress(IPV4, OWN[1].packed, 24, bridge.index)
    names = {index: each.name for index, each in every.items()}
    return KernelSnapshot(names, [held], {IPV4: bridge.index}, links=every, on_record=CniPods(pods))


def found(look: KernelSnapshot) -> list[Condition]:
    return list(check_pods(SUBJECT, look))


def test_pods_at_their_bridge_are_well() -> None:
    assert found(seen(VETH1, VETH2)) == []
    assert mendings(SUBJECT, seen(VETH1, VETH2)) == []


def test_a_port_in_another_vlan_than_the_bridge_is_named() -> None:
    look = seen(VETH1, VETH2, bridge=replace(CNI0, filters_vlans=True))
    vlans = {5: (1, frozenset({1})), 7: (1, frozenset({1})), 8: (9, frozenset({9}))}
    (one,) = found(replace(look, vlans=vlans))
    assert (one.check, one.cure, one.breaks_node) == (
        "bridge-vlan",
        "bridge vlan add dev veth2 vid 1 pvid untagged",
        False,
    )
    assert found(replace(look, vlans=vlans | {8: (1, frozenset({1, 2}))})) == []
    (one,) = found(replace(look, vlans={}))
    assert one.cure.startswith("bridge vlan add dev cni0 vid 1 pvid untagged self && bridge vlan add dev veth1 ")


def test_isolated_ports_are_named_unless_cni_was_asked_for_them() -> None:
    links = [replace(each, port=BridgePort(is_isolated=True)) for each in (VETH1, VETH2)]
    (one,) = found(seen(*links))
    assert one.cure == "bridge link set dev veth1 isolated off && bridge link set dev veth2 isolated off"
    assert one.is_broken
    (one,) = found(seen(*links, pods=()))
    assert not one.is_broken, "nobody knows what CNI was asked for"
    assert found(seen(*links, pods=(replace(POD, is_isolated=True),))) == []
    assert found(seen(links[0], VETH2)) == []


def test_a_port_that_waits_for_the_spanning_tree_is_named() -> None:
    (one,) = found(seen(replace(VETH1, port=BridgePort(state=1)), bridge=replace(CNI0, has_stp=True)))
    assert one.cause == "veth1 is kept in the state listening by the spanning tree of cni0."
    assert one.cure == "ip link set cni0 type bridge stp_state 0"


def test_a_port_is_made_again_as_cni_was_asked_for_it() -> None:
    alone = replace(VETH1, master=0, port=None, is_up=False)
    pods = (replace(POD, has_hairpin=True),)
    assert [each.command for each in mendings(SUBJECT, seen(alone, pods=pods))] == [
        "ip link set veth1 master cni0",
        "bridge link set dev veth1 hairpin on",
        "ip link set veth1 up",
    ]
    assert mendings(SUBJECT, seen(replace(VETH1, master=6), HostLink(6, "br1", "bridge"))) == []
    assert mendings(replace(SUBJECT, ports={7: ("veth1", "cni0")}), seen(alone, pods=())) == []


def test_three_interfaces_are_named_and_the_rest_counted() -> None:
    links = [HostLink(number, f"veth{number}", "veth", is_apart=True) for number in range(10, 15)]
    ports = {each.index: (each.name, "cni0") for each in links}
    (one,) = check_pods(replace(SUBJECT, ports=ports), seen(*links, pods=()))
    assert one.problem == "5 pods of this node can neither send nor receive packets."
    assert one.cause == "veth10, veth11, veth12 and 2 more have left the bridge cni0."
    assert one.cure.count(" && ") == 4


def test_an_interface_that_nobody_knows_is_a_warning() -> None:
    (one,) = found(seen(HostLink(9, "veth9", "veth", is_apart=True)))
    assert (one.is_broken, one.cure) == (False, "ip link set veth9 master cni0")


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        (
            "run/systemd/netif/links/7",
            "ADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/99-all.network\n",
            "systemd-networkd manages veth1 by /etc/systemd/network/99-all.network: ",
        ),
        ("run/systemd/netif/links/7", "ADMIN_STATE=unmanaged\nNETWORK_FILE=/etc/x.network\n", ""),
        ("run/NetworkManager/devices/7", "[device]\nmanaged=true\n", "NetworkManager manages veth1: "),
        ("run/NetworkManager/devices/7", "[device]\nmanaged=false\n", ""),
    ],
)
def test_who_manages_an_interface_is_said_with_the_setting_that_keeps_it_off(
    tmp_path: Path, path: str, text: str, words: str
) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    said = managers_of(HostFiles(root=tmp_path), [VETH1])
    assert bool(said) is bool(words)
    assert said.get(7, "").startswith(words)
    look = replace(seen(replace(VETH1, master=0)), managers=said)
    assert found(look)[0].cause == f"veth1 has left the bridge cni0. {said[7]}".rstrip() if said else not said


def result(address: str, *interfaces: str, more: str = "", **config: object) -> str:
    flannel = {"plugins": [{"type": "flannel", "delegate": config}, {"type": "portmap"}]}
    document = {
        "config": base64.b64encode(json.dumps(flannel).encode()).decode(),
        "result": {
            "interfaces": [
                *({"name": each} for each in interfaces),
                {"name": "eth0", "sandbox": "/run/netns/x"},
                *({"name": each} for each in more.split()),
            ],
            "ips": [{"address": address, "interface": 2}],
        },
    }
    return json.dumps(document)


def test_pods_are_read_from_results_and_from_the_addresses_that_were_given(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "networks/cbr0").mkdir(parents=True)
    (tmp_path / "results/cbr0-a-eth0").write_text(
        result("10.5.1.2/24", "cni0", "veth1", more="bwp1", hairpinMode=True)
    )
    (tmp_path / "results/cbr0-b-eth0").write_text("{")
    (tmp_path / "results/ptp-c-eth0").write_text(result("10.5.1.9/32", "veth9", more="bwp9"))
    for name in ("10.5.1.2", "10.5.1.3", "fd00_10_5_1__3", "last_reserved_ip.0", "lock"):
        (tmp_path / "networks/cbr0" / name).touch()
    known = {ip_address(each.addresses[0]): each for each in cni_pods(tmp_path).pods}
    assert {str(address) for address in known} == {"10.5.1.2", "10.5.1.9", "10.5.1.3", "fd00:10:5:1::3"}
    one = known[ip_address("10.5.1.2")]
    assert (one.bridge, one.interface, one.has_hairpin, one.is_isolated) == ("cni0", "veth1", True, False)
    other = known[ip_address("10.5.1.9")]
    assert (other.bridge, other.interface) == ("", "veth9")


GONE = [Reservation("cbr0", f"10.5.1.{n}", OWN[n].packed, f"c{n}", "eth0") for n in range(3, 7)]


def with_reservations(*some: Reservation, links: tuple[HostLink, ...] = (VETH1,), answers: int = 0) -> KernelSnapshot:
    """A look that has the interface of the first pod alone, while CNI has results of all of these."""
    pods = [
        CniPod((each.packed,), "cni0", f"gone{each.name}", container=each.container, inside="eth0") for each in some
    ]
    look = seen(*links)
    neighbours = {OWN[answers].packed: NeighbourState(NUD_REACHABLE)} if answers else {}
    return replace(look, on_record=CniPods((POD, *pods), reservations=some), at_bridge=neighbours)


def test_addresses_of_pods_that_are_gone_are_named_once_enough_looks_have_found_it() -> None:
    look = with_reservations(*GONE)
    assert list(check_addresses(SUBJECT, look)) == []
    (told,) = check_addresses(replace(SUBJECT, leaked=frozenset(GONE)), look)
    assert told.problem == (
        "4 addresses of 10.5.1.0/24 are reserved for pods that are gone, and given to no new one: 10.5.1.3, "
        "10.5.1.4, 10.5.1.5 and 1 more."
    )
    assert (told.weight, told.cure, "249 are free" in told.cause) == (
        WARNING,
        "flannelette addresses --release",
        True,
    )
    (told,) = check_addresses(replace(SUBJECT, leaked=frozenset(GONE[:1])), look)
    assert told.problem.startswith("1 address of 10.5.1.0/24 is reserved for pods that are gone")


def test_a_neighbour_that_answers_or_a_pod_that_nobody_knows_keeps_addresses_from_being_named() -> None:
    subject = replace(SUBJECT, leaked=frozenset(GONE[:1]))
    assert list(check_addresses(subject, with_reservations(GONE[0], answers=3))) == []
    assert list(check_addresses(subject, with_reservations(GONE[0], links=(VETH1, VETH2)))) == []
    docker = replace(VETH2, master=9)
    assert len(list(check_addresses(subject, with_reservations(GONE[0], links=(VETH1, docker))))) == 1


def test_lost_addresses_matter_soon_where_a_tenth_or_less_is_free() -> None:
    many = [replace(GONE[0], name=str(each), packed=each.packed) for each in OWN.hosts()][1:]
    subject = replace(SUBJECT, leaked=frozenset(many))
    for count, weight in ((227, WARNING), (228, SOON), (253, SOON)):
        (told,) = check_addresses(subject, with_reservations(*many[:count]))
        assert told.weight is weight, count


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert cni_pods(tmp_path / "cni").obstacle == f"{tmp_path}/cni cannot be read here (No such file or directory)"
    assert cni_pods(tmp_path).obstacle == ""


@pytest.mark.parametrize(
    ("number", "links", "is_broken"), [(2, [VETH1], True), (2, [VETH2], False), (9, [VETH1], False)]
)
def test_a_route_in_the_way_of_a_pod_that_cni_has_on_record_is_broken_also_without_a_neighbour_entry(
    number: int, links: list[HostLink], is_broken: bool
) -> None:
    route = Route(OWN[number].packed, b"", 0, IPV4.af, 32, 0, 3, route_type=RTN_BLACKHOLE)
    (one,) = check_routes(replace(SUBJECT, own_parts=[route]), seen(*links))
    assert (one.check, one.is_broken) == ("own-part", is_broken)
