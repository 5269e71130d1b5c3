"""The mirror of the nodes: what a listing and each message of the watch mean for leases."""

import asyncio

from services.core.leases.node_overrides import PublicIpOverride
from services.core.leases.table import Removed, Upserted
from services.lease.stores.kube.node_leases import withdrawal_patch
from services.lease.stores.kube.values import Batch, Deleted, Node
from services.lease.stores.kube.watch import Mirror
from services.lease.stores.store import Changed
from tests.kubernetes.node_examples import KEYS, V4, F, make_node


def test_a_refused_node_keeps_its_lease_unless_it_is_another_of_the_same_name() -> None:
    mirror = Mirror(V4, KEYS)
    good, bad = make_node(), make_node(public_ip="nonsense")
    lease = mirror.replace([good], "1").leases["a"]
    event = mirror.fold(Batch((bad,), "2"))
    assert isinstance(event, Changed)
    assert (event.changes, list(event.refused), event.cleared) == ((), ["a"], frozenset())
    assert mirror.snapshot().leases == {"a": lease}
    assert mirror.replace([bad], "3").leases == {"a": lease}, "also through a new listing"
    another = make_node("a", "10.244.9.0/24", public_ip="nonsense")
    event = mirror.fold(Batch((another,), "4"))
    assert event is not None
    assert event.changes == (Removed("a"),)
    event = mirror.fold(Batch((good,), "5"))
    assert event == Changed((Upserted(lease),), cleared=frozenset({"a"}))
    mirror.fold(Batch((bad,), "6"))
    assert mirror.fold(Batch((Deleted("a"),), "7")) == Changed((Removed("a"),), cleared=frozenset({"a"}))


def test_what_the_operator_has_chosen_is_told_whenever_it_changes_also_of_a_node_without_flannel() -> None:
    mirror = Mirror(V4, KEYS)
    v4 = PublicIpOverride(4, "198.51.100.1", f"annotation {F}node-public-ip")
    v6 = PublicIpOverride(6, "no address", f"annotation {F}node-public-ipv6")
    fresh = Node("b", annotations={f"{F}node-public-ip": v4.text, f"{F}node-public-ipv6": v6.text})
    assert mirror.replace([make_node(), fresh], "1").overrides == {"b": (v4, v6)}
    assert mirror.fold(Batch((make_node(public_ip="192.168.0.9"),), "2")) == Changed(
        (Upserted(mirror.snapshot().leases["a"]),)
    ), "nothing is new of what is chosen"
    event = mirror.fold(Batch((make_node(node_public_ip=v4.text, public_ip="192.168.0.9"),), "3"))
    assert event == Changed(overrides={"a": (v4,), "b": (v4, v6)})
    assert mirror.fold(Batch((Deleted("b"), make_node()), "4")) == Changed(
        (Upserted(mirror.snapshot().leases["a"]),), overrides={}
    )
    assert mirror.snapshot().overrides == {}


def test_a_node_that_gives_its_lease_back_says_so_and_one_that_loses_it_does_not() -> None:
    mirror = Mirror(V4, KEYS)
    patch = withdrawal_patch(make_node(), KEYS)
    assert patch
    withdrawn = make_node(kube_subnet_manager=patch["metadata"]["annotations"][KEYS.managed])
    for gone, released in ((withdrawn, {"a"}), (make_node(kube_subnet_manager=""), set()), (Deleted("a"), set())):
        mirror.fold(Batch((make_node(),), "1"))
        assert mirror.fold(Batch((gone,), "2")) == Changed((Removed("a"),), released=frozenset(released))
    mirror.fold(Batch((make_node(),), "3"))
    event = mirror.fold(Batch((withdrawn, make_node(), Deleted("a")), "4"))
    assert event
    assert not event.released
    assert withdrawal_patch(withdrawn, KEYS) is None


async def test_a_wait_for_a_pod_cidr_ends_when_its_own_node_has_one() -> None:
    mirror = Mirror(V4, KEYS)
    mirror.replace([Node("a"), Node("b")], "1")
    waits = [asyncio.create_task(mirror.pod_cidr_of(name)) for name in ("a", "b")]
    for events, over in (
        ((Node("a"), Node("b")), [False, False]),
        ((Node("a", claimed=7), Deleted("b")), [False, False]),
        ((Node("a", ("10.244.1.0/24",)),), [True, False]),
        ((Node("b", ("10.244.2.0/24",)),), [True, True]),
    ):
        mirror.fold(Batch(events, "2"))
        await asyncio.sleep(0)
        assert [wait.done() for wait in waits] == over
    again = asyncio.create_task(mirror.pod_cidr_of("c"))
    await asyncio.sleep(0)
    mirror.replace([Node("c", ("10.244.3.0/24",))], "3")
    await again


def test_a_batch_without_news_is_still_where_to_go_on() -> None:
    mirror = Mirror(V4, KEYS)
    mirror.replace([make_node()], "1")
    for position, events in (("2", (make_node(),)), ("3", ())):
        assert mirror.fold(Batch(events, position)) is None
        assert mirror.position == position
