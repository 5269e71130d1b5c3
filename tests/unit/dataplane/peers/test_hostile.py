"""Whatever hostile leases say: nothing is routed that must not be, and honest leases lose nothing."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.peers import OperatorLimits, PeerContext, PeerSet, peers_of
from tests.examples.dataplane import (
    CAPTURED,
    DEVICE,
    HOST_GW_LINKS,
    subnet,
)
from tests.examples.dataplane import lease as make_lease
from tests.examples.leases import by_name
from tests.examples.peer_contexts import DUAL, MAC, N2, WIDE, assert_nothing_else_is_carried

addresses = st.sampled_from(
    "10.99.0.11 10.99.0.12 10.98.0.14 127.0.0.1 0.0.0.0 224.0.0.1 255.255.255.255 10.5.53.1 10.5.200.1 10.0.0.1 "
    "fd00:99::11 fd00:99::12 :: ::1 fe80::1 ff02::1 fd00:10:5:35::1".split()
).map(ip_address)
cidrs = st.sampled_from(
    "10.0.0.0/8 10.5.0.0/16 10.5.0.0/17 10.5.26.0/23 10.5.27.0/24 10.5.53.0/24 10.5.53.0/25 10.5.54.0/24 "
    "10.5.55.0/24 10.98.0.0/24 10.99.0.0/24 10.64.0.0/10 192.168.0.0/24 10.5.53.1/32 fd00:10:5::/48 "
    "fd00:10:5:1b::/64 fd00:10:5:35::/64 fd00:10:5:35:8000::/65 fd00:99::/64 fd00::/8".split()
).map(ip_network)
macs = st.sampled_from([MAC, DEVICE.mac, "00:00:00:00:00:00", "01:00:5e:00:00:01", "02:00:00:00:00:07", "", "x"])
parts = st.builds(Subnet, cidrs, st.none() | addresses, st.none() | st.builds(VxlanData, st.integers(0, 2), macs))
names = st.sampled_from("abcdef")
hostile = st.builds(
    Lease, names, names, st.lists(parts, max_size=3).map(tuple), st.sampled_from(["vxlan", "vxlan", "host-gw", ""])
)
situations = st.sampled_from([DUAL, WIDE]).flatmap(
    lambda situation: st.sampled_from([situation, replace(situation, backend=HostGw(), links=HOST_GW_LINKS)])
)
limits = st.builds(
    OperatorLimits,
    st.sampled_from([(), (ip_network("10.5.0.0/18"),), (ip_network("10.0.0.0/8"), ip_network("fd00:10::/32"))]),
    st.sampled_from([(), (ip_network("10.5.54.9/32"),)]),
)


@given(st.lists(hostile, max_size=6, unique_by=lambda lease: lease.name), situations, limits)
def test_whatever_leases_say_nothing_is_routed_but_pod_subnets_in_the_allowed_network(
    leases: list[Lease], situation: PeerContext, given_limits: OperatorLimits
) -> None:
    situation = replace(situation, limits=given_limits)
    peers = peers_of(leases, "n1", situation)
    assert_nothing_else_is_carried(peers, situation)


@given(st.lists(hostile, max_size=4, unique_by=lambda lease: lease.name), limits)
def test_honest_leases_lose_nothing_to_hostile_ones_of_other_sizes(
    bad: list[Lease], given_limits: OperatorLimits
) -> None:
    situation = replace(DUAL, limits=given_limits)
    honest = [
        make_lease(CAPTURED["n2"], node="n2"),
        make_lease(
            subnet("10.5.54.0/24", "10.99.0.15", "02:00:00:00:00:15"),
            subnet("fd00:10:5:36::/64", "fd00:99::15", "02:00:00:00:00:16"),
            node="n5",
        ),
    ]
    taken = {part.cidr for each in honest for part in each.subnets}
    bad = [each for each in bad if taken.isdisjoint(part.cidr for part in each.subnets)]
    without, beside = (peers_of(leases, "n1", situation) for leases in (honest, [*bad, *honest]))
    assert {name: beside[name].objects for name in without} == {n: peer.objects for n, peer in without.items()}


changes = st.lists(st.tuples(names, st.none() | hostile), max_size=12)


@given(changes, situations)
@example(
    [(name, replace(N2, name=name, node=name)) for name in "ab"] + [("a", None), ("b", None)],
    DUAL,
)
@example([("a", replace(N2, backend_type=backend)) for backend in ("vxlan", "host-gw")], DUAL)
def test_a_peer_set_updated_lease_by_lease_equals_one_made_of_all_leases(
    script: list[tuple[str, Lease | None]], situation: PeerContext
) -> None:
    """What a peer was before counts where its node has changed its backend (ADR 35)."""
    peer_set, leases = PeerSet("n1"), dict[str, Lease]()
    with capture_logs():
        peer_set.update(situation, {})
        for name, changed in script:
            if changed is None:
                leases.pop(name, None)
            else:
                leases[name] = replace(changed, name=name)
            before = dict(peer_set.peers)
            delta = peer_set.update(situation, leases, [name])
            assert {**{n: p for n, p in before.items() if n not in delta.old}, **delta.new} == peer_set.peers
            assert peer_set.peers == peers_of(leases.values(), "n1", situation, before)


@given(
    st.lists(hostile, max_size=6, unique_by=lambda lease: lease.name),
    situations,
    st.lists(st.lists(cidrs, max_size=2).map(tuple), min_size=1, max_size=3),
)
def test_after_our_own_subnets_changed_everything_is_as_if_thought_through_from_the_start(
    leases: list[Lease], situation: PeerContext, own_subnets: list[tuple[Network, ...]]
) -> None:
    peer_set = PeerSet("n1")
    peer_set.update(situation, by_name(*leases))
    for own in own_subnets:
        before = dict(peer_set.peers)
        changed = replace(situation, own_subnets=own)
        delta = peer_set.update(changed, by_name(*leases))
        assert peer_set.peers == peers_of(leases, "n1", changed)
        assert {**{n: p for n, p in before.items() if n not in delta.old}, **delta.new} == peer_set.peers
