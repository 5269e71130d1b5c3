"""What nodes that a test plays mean for leases: unreadable, made again, chosen for, withdrawn."""

from collections.abc import Mapping

from flannelette.services.core.leases.table import PublicIpOverride, PublicIpOverrides, Removed, StoreStatus
from tests.kubernetes.played_api import PREFIX, Document, ScriptedApi, node, status
from tests.kubernetes.played_store import Open
from tests.services.follower import Follower, following


def annotated(document: Document, **annotations: str) -> Document:
    """The node with these, without flannel's prefix, `_` for `-`."""
    named = {f"{PREFIX}{key.replace('_', '-')}": text for key, text in annotations.items()}
    document["metadata"]["annotations"] |= named
    return document


async def test_a_refused_node_keeps_its_lease_unless_it_is_another_of_the_same_name(
    api: ScriptedApi, scripted: Open
) -> None:
    async with following(scripted()) as seen:
        await seen.until(lambda f: "n1" in f.leases)
        lease, watch = seen.leases["n1"], await api.watched()
        api.put(annotated(node(1), public_ip="nonsense"))
        await seen.until(lambda f: "n1" in f.refused)
        watch.send("ERROR", status(410, "too old resource version", "Expired"))
        await seen.until(lambda f: f.snapshots == 2)
        assert (seen.leases["n1"], "n1" in seen.refused) == (lease, True), "also through a new listing"
        await api.watched(2)
        another = annotated(node(1), public_ip="nonsense")
        another["spec"] = {"podCIDR": "10.99.9.0/24", "podCIDRs": ["10.99.9.0/24"]}
        api.put(another)
        await seen.until(lambda f: "n1" not in f.leases)
        api.put(node(1))
        await seen.until(lambda f: f.leases.get("n1") == lease and not f.refused)


def chosen(seen: Follower) -> Mapping[str, PublicIpOverrides]:
    """What operators have chosen, as the store told it last."""
    told = [event.overrides for event in seen.events if not isinstance(event, StoreStatus)]
    return [overrides for overrides in told if overrides is not None][-1]


async def test_what_the_operator_has_chosen_is_told_whenever_it_changes_also_of_a_node_without_flannel(
    api: ScriptedApi, scripted: Open
) -> None:
    v4 = PublicIpOverride(4, "198.51.100.1", f"annotation {PREFIX}node-public-ip")
    v6 = PublicIpOverride(6, "no address", f"annotation {PREFIX}node-public-ipv6")
    api.put(annotated(node(1), kube_subnet_manager="", node_public_ip=v4.text, node_public_ipv6=v6.text))
    async with following(scripted()) as seen:
        await seen.until(lambda f: f.snapshots == 1 and chosen(f) == {"n1": (v4, v6)})
        await api.watched()
        api.put(annotated(node(2), node_public_ip=v4.text))
        await seen.until(lambda f: chosen(f) == {"n1": (v4, v6), "n2": (v4,)})
        api.delete("n1")
        api.put(node(2))
        await seen.until(lambda f: chosen(f) == {})


async def test_a_node_that_gives_its_lease_back_says_so_and_one_that_loses_it_does_not(
    api: ScriptedApi, scripted: Open
) -> None:
    async with following(scripted()) as seen:
        await seen.until(lambda f: len(f.leases) == 7)
        await api.watched()
        api.put(annotated(node(1), kube_subnet_manager="false"))
        api.put(annotated(node(2), kube_subnet_manager=""))
        api.delete("n3")
        await seen.until(lambda f: not f.leases.keys() & {"n1", "n2", "n3"})
    assert {change.name for event in seen.news for change in event.changes if isinstance(change, Removed)} == {
        "n1",
        "n2",
        "n3",
    }
    assert {name for event in seen.news for name in event.released} == {"n1"}
