"""The story that `flannelette watch` tells of a stream."""

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.ctl.commands.watch import Story
from tests.ctl.samples import NOW, at, network, vxlan_lease


def upserted(*leases: pb.Lease) -> list[pb.Change]:
    return [pb.Change(upserted=lease) for lease in leases]


def removed(name: str) -> list[pb.Change]:
    return [pb.Change(removed=name)]


def told(story: Story, step: pb.WatchLeasesResponse) -> list[str]:
    return [line.plain for line in story.tell(step, NOW)]


def synced_story() -> Story:
    story = Story()
    told(
        story,
        pb.WatchLeasesResponse(
            reset=True,
            changes=upserted(vxlan_lease(2), vxlan_lease(3)),
            network=network(),
            store=pb.StoreStatus(kind="etcd", connected=True),
            synced=True,
            cursor="e1.2",
        ),
    )
    return story


def test_a_snapshot_is_told_lease_by_lease_and_ends_in_synced() -> None:
    story = Story()
    first = pb.WatchLeasesResponse(
        reset=True,
        changes=upserted(vxlan_lease(2)),
        network=network(),
        store=pb.StoreStatus(kind="embedded", connected=True),
    )
    assert told(story, first) == [
        "+ 10.5.2.0/24 h2 10.99.0.12 vxlan vni 1 c6:d2:32:6f:8f:02",
        "network 10.5.0.0/16 (a /24 per node), vxlan",
        "= embedded, connected",
    ]
    assert told(story, pb.WatchLeasesResponse(synced=True, cursor="e1.1")) == ["= synced, 1 lease, cursor e1.1"]


def test_a_changed_lease_is_told_by_its_differences() -> None:
    story = synced_story()
    moved = vxlan_lease(2)
    moved.subnets[0].public_address = "10.99.0.99"
    moved.node = "h7"
    step = pb.WatchLeasesResponse(changes=upserted(moved), synced=True, cursor="e1.3")
    assert told(story, step) == ["~ 10.5.2.0/24 h7 node h2 -> h7; address 10.99.0.12 -> 10.99.0.99"]


def test_a_renewal_is_told_by_its_time() -> None:
    renewed = vxlan_lease(2)
    renewed.expire_time.CopyFrom(at(hours=24))
    step = pb.WatchLeasesResponse(changes=upserted(renewed), synced=True)
    assert told(synced_story(), step) == ["~ 10.5.2.0/24 h2 expires in 1 d"]


def test_changes_are_told_in_their_order() -> None:
    step = pb.WatchLeasesResponse(
        changes=[*removed("10.5.2.0-24"), *upserted(vxlan_lease(2)), *removed("never-seen")], synced=True
    )
    assert [line[0] for line in told(synced_story(), step)] == ["-", "+", "-"]


def test_a_removed_lease_is_told_with_what_it_was() -> None:
    step = pb.WatchLeasesResponse(changes=removed("10.5.3.0-24"), synced=True)
    assert told(synced_story(), step) == ["- 10.5.3.0/24 h3 10.99.0.13 vxlan vni 1 c6:d2:32:6f:8f:03"]


def test_a_later_snapshot_tells_only_what_it_changes_and_removes_at_its_end() -> None:
    story = synced_story()
    begin = pb.WatchLeasesResponse(reset=True, changes=upserted(vxlan_lease(2)), network=network())
    assert told(story, begin) == ["= a new snapshot begins"]
    assert told(story, pb.WatchLeasesResponse(synced=True, cursor="e2.1")) == [
        "- 10.5.3.0/24 h3 10.99.0.13 vxlan vni 1 c6:d2:32:6f:8f:03",
        "= synced, 1 lease, cursor e2.1",
    ]


def test_an_empty_step_is_a_bookmark() -> None:
    step = pb.WatchLeasesResponse(synced=True, cursor="e1.9")
    assert told(synced_story(), step) == ["= bookmark, cursor e1.9"]


def test_a_broken_configuration_and_a_store_that_is_away_are_warnings() -> None:
    step = pb.WatchLeasesResponse(
        network_error="it has no Network", store=pb.StoreStatus(kind="etcd", error="refused"), synced=True
    )
    assert told(synced_story(), step) == [
        "! the stored network configuration is not in force: it has no Network",
        "! the store (etcd) is away: refused",
    ]


def test_a_lease_that_nobody_could_use_is_shown_all_the_same() -> None:
    odd = pb.Lease(name="10.5.4.0-24", subnets=[pb.Subnet(cidr="nonsense", opaque_json="{}")], reserved=True)
    step = pb.WatchLeasesResponse(changes=upserted(odd), synced=True)
    assert told(synced_story(), step) == ["+ nonsense - {} reserved"]


def test_leases_of_a_cluster_that_is_awaited_are_not_told_as_gone() -> None:
    story, west = Story(), vxlan_lease(4)
    west.name, west.cluster = "west/10.5.4.0-24", "west"
    told(
        story, pb.WatchLeasesResponse(reset=True, changes=upserted(vxlan_lease(2), west), synced=True, cursor="e1.1")
    )
    awaited = pb.AwaitedClusters(names=["west"])
    again = pb.WatchLeasesResponse(
        reset=True, changes=upserted(vxlan_lease(2)), synced=True, awaited=awaited, cursor="e2.1"
    )
    assert told(story, again) == [
        "= a new snapshot begins",
        "! the leases of cluster west are not known yet: those of before stay",
        "= synced, 2 leases, cursor e2.1",
    ]
    (gone,) = told(story, pb.WatchLeasesResponse(synced=True, awaited=pb.AwaitedClusters()))
    assert gone.startswith("- 10.5.4.0/24")
