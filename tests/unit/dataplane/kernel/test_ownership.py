"""Which routes are ours: each rule of DESIGN.md, on what a flanneld leaves and on what it does not."""

from dataclasses import replace as _replace
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.kernel.reconciler import OwnedState, OwnershipRules, classify, wins
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route, plan
from tests.examples.dataplane import CAPTURED, ETH0, FLANNEL, HOST_GW_LINKS, LINKS, route, subnet

VXLAN = OwnershipRules([ip_network("10.5.0.0/16")], [ip_network("10.5.27.0/24")], {FLANNEL}, 77)
HOST_GW = _replace(VXLAN, devices=set())
WANTED = frozenset(o for part in CAPTURED.values() for o in Vxlan().peer_objects([part], (), LINKS))
WANTED_HOST_GW = frozenset(
    o
    for part in (subnet("10.5.41.0/24", "10.99.0.13"), subnet("10.5.78.0/24", "10.99.0.12"))
    for o in HostGw().peer_objects([part], (), HOST_GW_LINKS)
)


def changed(line: str, protocol: int = 3, **fields: object) -> Route:
    made = route(line, protocol)
    values = {name: getattr(made, name) for name in made._fields if name != "kind"} | fields
    return Route(**values)


def divided(*routes: Route, wanted: frozenset[KernelObject] = WANTED, domain: OwnershipRules = VXLAN) -> OwnedState:
    return classify(routes, (), wanted, domain)


TWIN = "10.5.53.0/24 via 10.5.53.0 dev flannel.1 onlink"
HOST_GW_TWIN = "10.5.41.0/24 via 10.99.0.13 dev eth0"


@pytest.mark.parametrize(
    "ours",
    [
        route("10.5.53.0/24 via 10.5.53.0 dev flannel.1 metric 1334 onlink", 77),
        route("192.168.7.0/24 via 10.99.0.1 dev eth0 metric 3", 77),
        route(TWIN),
        route("10.5.250.0/24 via 10.5.250.0 dev flannel.1 onlink"),
        route("10.5.250.0/24 dev flannel.1 metric 9"),
    ],
)
def test_ours_are_our_protocol_everywhere_and_boot_routes_on_our_device_inside_the_network(ours: Route) -> None:
    assert divided(ours) == OwnedState(frozenset([ours]), ())


@pytest.mark.parametrize(
    "foreign",
    [
        route("10.5.53.0/24 via 10.99.0.99 dev eth0"),
        route("10.5.53.0/24 via 10.5.53.0 dev flannel.1 onlink", 4),
        route("10.5.53.0/24 via 10.99.0.12 dev eth0 metric 1334", 4),
        changed(TWIN, rest=b"\x08\0\x07\0\x0a\x63\0\x0b"),
        changed(TWIN, route_type=7),
        changed(TWIN, tos=4),
        changed("10.5.53.0/24", 4, route_type=6, ifindex=0),
    ],
)
def test_every_other_route_inside_the_network_is_foreign_and_listed(foreign: Route) -> None:
    assert divided(foreign) == OwnedState(frozenset(), (foreign,))


@pytest.mark.parametrize(
    "line",
    [
        "10.6.0.0/24 via 10.99.0.99 dev eth0",
        "10.99.0.0/16 dev eth0",
        "10.5.27.0/24 dev eth0",
        "10.0.0.0/8 dev eth0",
        "10.4.0.0/15 dev eth0",
        "10.6.0.0/24 via 10.6.0.0 dev flannel.1",
    ],
)
def test_outside_the_network_or_in_the_own_subnet_is_nobodys_business(line: str) -> None:
    state = divided(route(line))
    assert (state.ours, state.foreign) == (frozenset(), ())
    assert state.own_parts == ((route(line),) if line.startswith("10.5.27.0/24") else ())


def test_host_gw_adopts_exactly_the_route_that_says_what_a_lease_says() -> None:
    twin = route(HOST_GW_TWIN)
    assert divided(twin, wanted=WANTED_HOST_GW, domain=HOST_GW) == OwnedState(frozenset([twin]), ())
    for other in (
        route("10.5.41.0/24 via 10.99.0.14 dev eth0"),
        route("10.5.42.0/24 via 10.99.0.13 dev eth0"),
        route("10.5.41.0/25 via 10.99.0.13 dev eth0"),
        route("10.5.41.0/24 via 10.99.0.13 dev eth0 metric 1"),
        route("10.5.41.0/24 via 10.99.0.13 dev other"),
        route(HOST_GW_TWIN, 4),
        changed(HOST_GW_TWIN, rest=b"\x08\0\x07\0\x0a\x63\0\x0b"),
        changed(HOST_GW_TWIN, tos=4),
    ):
        assert divided(other, wanted=WANTED_HOST_GW, domain=HOST_GW) == OwnedState(frozenset(), (other,)), other


def test_everything_that_is_no_route_on_our_device_is_ours() -> None:
    on_device: list[KernelObject] = [
        Neighbour(b"\x0a\5\x63\0", bytes(6), 2, FLANNEL),
        FdbEntry(bytes(6), b"\x0a\x63\0\x63", FLANNEL),
    ]
    assert classify((), on_device, frozenset(), VXLAN).ours == frozenset(on_device)


def test_a_lower_or_equal_metric_wins() -> None:
    ours = route("10.5.53.0/24 via 10.5.53.0 dev flannel.1 metric 1334", 77)
    assert wins(route("10.5.53.0/24 via 10.99.0.9 dev eth0"), ours)
    assert wins(route("10.5.53.0/24 via 10.99.0.9 dev eth0 metric 1334"), ours)
    assert not wins(route("10.5.53.0/24 via 10.99.0.9 dev eth0 metric 1335"), ours)


_routes = st.builds(
    lambda third, length, gateway, metric, device, protocol, rest, kind, tos: Route(
        bytes((10, 5, third, 0)), gateway, metric, 2, length, device, protocol, rest=rest, route_type=kind, tos=tos
    ),
    st.sampled_from([27, 53, 82, 97, 200]),
    st.sampled_from([16, 24, 25]),
    st.sampled_from([b"", b"\x0a\5\x35\0", b"\x0a\x63\0\x0c"]),
    st.sampled_from([0, 1, 1334]),
    st.sampled_from([0, ETH0, FLANNEL]),
    st.sampled_from([2, 3, 4, 77, 186]),
    st.sampled_from([b"", b"\x08\0\x07\0\x0a\x63\0\x0b"]),
    st.sampled_from([1, 6, 7]),
    st.sampled_from([0, 4]),
)


@given(st.frozensets(_routes, max_size=30))
def test_a_foreign_route_is_never_in_the_plan(routes: frozenset[Route]) -> None:
    found = classify(routes, (), WANTED, VXLAN)
    occupied = {each.key for each in found.foreign}
    todo = plan(found.ours, frozenset(o for o in WANTED if o.key not in occupied))
    strangers = {r for r in routes if r.protocol not in (77, 3) or (r.protocol == 3 and r.ifindex != FLANNEL)}
    assert not todo.delete & strangers
    assert not {each.key for each in todo.put} & {each.key for each in strangers if each in found.foreign}
    assert found.ours.isdisjoint(strangers)
