"""Table and leases in, changes out: what is ours, what is somebody's, and what is full."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.cloud.routes import DesiredRoute, Key, Plan, Route, RouteTables, Table, Target, plan

NETWORK = (ip_network("10.5.0.0/16"),)


def wanted(text: str) -> list[DesiredRoute]:
    """`n1 10.5.1.0/24 10.99.0.11` on each line."""
    rows = [line.split() for line in text.strip().splitlines()]
    return [DesiredRoute(ip_network(cidr), node, ip_address(address)) for node, cidr, address in rows]


def table(name: str, *lines: str, most: int = 50, is_used: bool = True) -> Table:
    """`10.5.1.0/24 eni-1 [state] [marked]` each."""
    routes = []
    for line in lines:
        cidr, target, *words = line.split()
        states = [word for word in words if word != "marked"]
        marked = "marked" in words
        routes.append(Route(name, ip_network(cidr), target, (states or ["active"])[0], is_marked=marked))
    return Table(name, tuple(routes), most, is_used)


def view(*tables: Table, closed: Sequence[int] = (), unknown: Sequence[int] = ()) -> RouteTables:
    """Nodes 1 to 9 have address 10.99.0.1N and interface eni-N."""
    targets = {ip_address(f"10.99.0.1{n}"): Target(f"eni-{n}", n not in closed) for n in range(1, 10)}
    return RouteTables(tables, {a: t for a, t in targets.items() if int(t.name[4:]) not in unknown})


def lines(found: Plan) -> list[str]:
    return [change.text for change in found.changes]


def problems(found: Plan) -> list[str]:
    return [f"{row.node or '-'}: {row.problem}" for row in found.rows if row.problem]


TWO = wanted("n1 10.5.1.0/24 10.99.0.11\nn2 10.5.2.0/24 10.99.0.12")


def made(tables: RouteTables, seen: Collection[Key] = (), leases: Sequence[DesiredRoute] = TWO) -> Plan:
    return plan(leases, tables, seen, NETWORK)


def test_what_is_missing_is_created_in_each_table() -> None:
    found = made(view(table("a", "10.5.1.0/24 eni-1"), table("b")))
    assert lines(found) == [
        "create 10.5.2.0/24 via eni-2 in a",
        "create 10.5.1.0/24 via eni-1 in b",
        "create 10.5.2.0/24 via eni-2 in b",
    ]
    assert problems(found) == []


def test_the_order_is_that_of_tables_and_destinations_however_leases_and_clouds_list_them() -> None:
    tables = (table("a", "10.5.20.0/24 eni-x", "10.5.3.0/24 eni-x"), table("b"))
    found = made(view(*tables))
    assert [(row.route.table, str(row.route.destination)) for row in found.rows] == [
        *(("a", f"10.5.{n}.0/24") for n in (1, 2, 3, 20)),
        *(("b", f"10.5.{n}.0/24") for n in (1, 2)),
    ]
    backwards = [replace(each, routes=each.routes[::-1]) for each in reversed(tables)]
    assert made(view(*backwards), leases=TWO[::-1]) == found


def test_nothing_is_changed_where_the_table_is_right() -> None:
    found = made(view(table("a", "10.5.1.0/24 eni-1", "10.5.2.0/24 eni-2", "0.0.0.0/0 igw-1")))
    assert found.changes == ()
    assert [row.route.state for row in found.rows] == ["active", "active"]


def test_a_route_to_a_node_that_lost_the_subnet_to_another_one_is_replaced() -> None:
    assert lines(made(view(table("a", "10.5.1.0/24 eni-2", "10.5.2.0/24 eni-2")))) == [
        "replace 10.5.1.0/24 via eni-1 in a instead of eni-2"
    ]


def test_a_route_of_before_is_replaced_and_that_of_somebody_else_is_reported() -> None:
    there = view(table("a", "10.5.1.0/24 eni-x", "10.5.2.0/24 eni-2"))
    assert lines(made(there, {("a", "10.5.1.0/24", "eni-x")})) == [
        "replace 10.5.1.0/24 via eni-1 in a instead of eni-x"
    ]
    found = made(there)
    assert lines(found) == []
    assert problems(found) == [
        "n1: a route of somebody else leads to eni-x: delete it, or take the subnet out of the network"
    ]
    assert ("a", "10.5.1.0/24", "eni-1") not in found.desired()


def test_a_blackhole_in_a_leased_subnet_is_replaced_whosever_it_was() -> None:
    found = made(view(table("a", "10.5.1.0/24 eni-x blackhole", "10.5.2.0/24 eni-2")))
    assert lines(found) == ["replace 10.5.1.0/24 via eni-1 in a instead of eni-x"]


def test_an_instance_that_is_stopped_is_told_and_its_route_stays() -> None:
    found = made(view(table("a", "10.5.1.0/24 eni-1 blackhole", "10.5.2.0/24 eni-2")))
    assert (lines(found), problems(found)) == ([], ["n1: eni-1 takes no packets: start the instance"])


@pytest.mark.parametrize("state", ["active", "blackhole"])
def test_the_route_of_a_node_that_left_is_deleted_only_if_it_is_ours(state: str) -> None:
    there = view(
        table("a", "10.5.1.0/24 eni-1", "10.5.2.0/24 eni-2", f"10.5.3.0/24 eni-3 {state}", "10.6.0.0/24 vgw")
    )
    assert lines(made(there, {("a", "10.5.3.0/24", "eni-3")})) == ["delete 10.5.3.0/24 via eni-3 in a"]
    found = made(there)
    assert (lines(found), problems(found)) == ([], ["-: no lease has this subnet, and the route is not ours"])


def test_a_route_that_bears_our_mark_is_ours_wherever_it_leads() -> None:
    there = view(table("a", "10.5.1.0/24 eni-x marked", "10.5.2.0/24 eni-2", "10.5.9.0/24 eni-9 marked"))
    assert lines(made(there)) == [
        "replace 10.5.1.0/24 via eni-1 in a instead of eni-x",
        "delete 10.5.9.0/24 via eni-9 in a",
    ]


def test_a_mark_outside_of_the_network_is_that_of_another_cluster_unless_the_route_was_seen() -> None:
    there = view(table("a", "10.5.1.0/24 eni-1", "10.5.2.0/24 eni-2", "10.9.9.0/24 eni-9 marked"))
    assert lines(made(there)) == []
    assert lines(made(there, {("a", "10.9.9.0/24", "eni-9")})) == ["delete 10.9.9.0/24 via eni-9 in a"]


def test_a_disabled_route_is_replaced() -> None:
    found = made(view(table("a", "10.5.1.0/24 eni-1 disabled", "10.5.2.0/24 eni-2")))
    assert lines(found) == ["replace 10.5.1.0/24 via eni-1 in a instead of eni-1"]


def test_an_instance_that_may_not_forward_is_let_after_its_route_is_there() -> None:
    assert lines(made(view(table("a", "10.5.1.0/24 eni-1"), closed=[1, 2, 3]))) == [
        "create 10.5.2.0/24 via eni-2 in a",
        "let eni-1 forward packets of pods",
        "let eni-2 forward packets of pods",
    ]


def test_a_node_that_the_cloud_does_not_know_is_told_and_its_route_stays() -> None:
    found = made(view(table("a", "10.5.1.0/24 eni-x", "10.5.2.0/24 eni-2"), unknown=[1]))
    assert (lines(found), problems(found)) == ([], ["n1: the cloud has no instance with address 10.99.0.11"])


def test_nodes_that_the_cloud_does_not_know_are_told_where_no_table_is_used() -> None:
    found = made(view(table("b", is_used=False), unknown=[1, 2]))
    assert (lines(found), problems(found)) == (
        [],
        [f"n{n}: the cloud has no instance with address 10.99.0.1{n}" for n in (1, 2)],
    )


def test_a_table_that_no_node_uses_any_more_is_cleaned_once_all_nodes_are_known() -> None:
    old = table("b", "10.5.1.0/24 eni-1", "10.5.7.0/24 eni-7", is_used=False)
    new = table("a", "10.5.1.0/24 eni-1", "10.5.2.0/24 eni-2")
    seen = {("b", "10.5.1.0/24", "eni-1")}
    assert lines(made(view(new, old), seen)) == ["delete 10.5.1.0/24 via eni-1 in b"]
    assert lines(made(view(new, old, unknown=[2]), seen)) == []


def test_a_full_table_is_told_before_it_is() -> None:
    nodes = wanted("\n".join(f"n{n} 10.5.{n}.0/24 10.99.0.1{n}" for n in range(1, 10)))
    (soon,) = made(view(table("a", most=10)), leases=nodes).findings
    assert (soon.problem, soon.is_soon, soon.is_broken) == ("Table a needs 9 routes, and takes 10.", True, False)
    (over,) = made(view(table("a", most=8)), leases=nodes).findings
    assert (over.problem, over.is_soon, over.is_broken) == ("Table a needs 9 routes, and takes 8.", False, True)
    assert made(view(table("a", most=12)), leases=nodes).findings == ()


def test_a_full_table_in_which_no_node_looks_is_not_told() -> None:
    full = table("b", *(f"10.9.{n}.0/24 igw-1" for n in range(10)), most=10, is_used=False)
    assert made(view(table("a"), full)).findings == ()


def test_a_thousand_nodes_and_two_tables() -> None:
    nodes = [
        DesiredRoute(
            ip_network((int(ip_address("10.5.0.0")) + 64 * n, 26)), f"n{n}", ip_address(f"10.99.{n // 250}.{n % 250}")
        )
        for n in range(1000)
    ]
    targets = {each.address: Target(f"eni-{each.node}") for each in nodes if each.address}
    found = made(RouteTables([table("a", most=1000), table("b", most=1000)], targets), leases=nodes)
    assert len(found.changes) == 2000
    again = [
        Table(name, tuple(change.route for change in found.changes if change.route.table == name), 1500)
        for name in ("a", "b")
    ]
    assert made(RouteTables(again, targets), leases=nodes).changes == ()
