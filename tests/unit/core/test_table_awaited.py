"""The fold while the leases of another cluster are awaited: what is known of them stays."""

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, Table, Upserted
from tests.unit.core.test_table import NETWORK, lease, synced_table, up


def of_cluster(name: str, cluster: str, value: int = 0) -> Lease:
    return Lease(name, f"{cluster}/node-{value}", (), cluster=cluster)


def test_leases_of_an_awaited_cluster_stay_until_it_is_awaited_no_more() -> None:
    west, late, north = of_cluster("west/a", "west"), of_cluster("west/b", "west"), of_cluster("north/a", "north")
    table = synced_table(a=1, b=1)
    table.fold(Step(changes=(Upserted(west), Upserted(late), Upserted(north)), synced=True, cursor="2"))
    again = Step(
        reset=True, changes=(up("a", 1),), network=NETWORK, synced=True, cursor="x", awaited=frozenset({"west"})
    )
    assert table.fold(again) == {"b", "north/a"}  # what is known of others goes with the reset
    assert table.leases.keys() == {"a", "west/a", "west/b"}
    assert table.is_complete
    assert table.fold(Step(changes=(up("b"),), synced=True, cursor="y")) == {"b"}
    answer = Step(changes=(Upserted(west),), synced=True, cursor="z", awaited=frozenset())
    assert table.fold(answer) == {"west/b"}
    assert table.leases.keys() == {"a", "b", "west/a"}


def test_a_reset_that_awaits_nothing_ends_what_one_before_it_awaited() -> None:
    table = synced_table()
    table.fold(Step(changes=(Upserted(of_cluster("west/a", "west")),), synced=True))
    table.fold(Step(reset=True, synced=True, awaited=frozenset({"west"})))
    assert table.leases.keys() == {"west/a"}
    table.fold(Step(reset=True))
    assert table.leases.keys() == {"west/a"}
    table.fold(Step(synced=True))
    assert table.leases == {}


def test_what_was_known_before_is_adopted_of_awaited_clusters_only() -> None:
    table = Table()
    table.fold(Step(reset=True, changes=(up("a"),), network=NETWORK, synced=True, awaited=frozenset({"west"})))
    table.adopt(
        {each.name: each for each in (of_cluster("west/a", "west"), of_cluster("north/a", "north"), lease("b"))}
    )
    assert table.leases.keys() == {"a", "west/a"}
    assert table.fold(Step(synced=True, awaited=frozenset())) == {"west/a"}
