"""Desired routes of a cloud's routing tables, the actual ones, and the changes between them. Pure.

A route is ours if it bears our mark and lies in the network, if this program has seen it carry a lease, or if the
subnet is leased and the route leads to a node of the overlay or nowhere. All else is reported, and never changed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

from flannelette.services.core.conditions import BROKEN, SOON, Condition, found
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4, Address, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.conflicts import losses
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import NetworkConfig, contains

_NEARLY_FULL: Final = 0.8
Key: TypeAlias = tuple[str, str, str]
"""Table, destination and target of a route."""
_LONGEST: Final = 400  # letters of what a provider says


class Failure(Enum):
    """What to do after a call failed."""

    WAIT = "throttled, or not answered: everything is tried again, later and later"
    DENIED = "not allowed: somebody has to set something, then everything is tried again"
    FULL = "the table takes no more routes: nothing more is created in this one"
    CHANGED = "another program was faster: look again"
    REFUSED = "this one cannot be done; the others are not affected"


class CloudError(Unavailable):
    """A call to the provider failed; the message has its code, and what to do."""

    def __init__(self, trouble: Failure, code: str, message: str, cure: str = "") -> None:
        said = message.rstrip(".") if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
        super().__init__(f"{code}: {said}".strip(": ") + (f": {cure}" if cure else ""))
        self.trouble = trouble
        self.code = code


@frozen
class Route:
    """A route of a routing table."""

    table: str
    destination: Network
    target: str
    """The next hop, as the provider names it."""
    state: str = "active"
    """`active`, `pending`, `disabled`, or `blackhole`: the target does not take packets."""
    handle: str = ""
    """The provider's name of the route, where it has one."""
    is_marked: bool = False
    """The route says itself that it is ours."""

    @property
    def key(self) -> Key:
        """What it is remembered by."""
        return self.table, str(self.destination), self.target


@frozen
class Table:
    """A routing table of the cloud."""

    name: str
    routes: tuple[Route, ...]
    """All that count for `most`."""
    most: int
    """How many routes it takes, as far as is known."""
    is_used: bool = True
    """A node looks into it; else what is ours there is removed, once the cloud knows every node."""


@frozen
class Target:
    """A node as the cloud knows it."""

    name: str
    forwards: bool = True
    """The cloud lets it send and receive packets of other addresses."""


@frozen
class RouteTables:
    """What a look at the cloud has found."""

    tables: Sequence[Table]
    targets: Mapping[Address, Target]
    """Targets by the public address in the node's lease."""


class DesiredRoute(NamedTuple):
    """A leased subnet, and the node to which its packets must go."""

    destination: Network
    node: str
    address: Address | None


class Verb(Enum):
    """What a change does, in the order of a plan: nothing is deleted before what is needed is there."""

    REPLACE = "replace"
    CREATE = "create"
    FORWARD = "let forward"
    DELETE = "delete"


@frozen
class Change:
    """One call to the provider."""

    verb: Verb
    route: Route
    """The route as it is to be; of a DELETE, as it is. FORWARD concerns its target only."""
    old: Route | None = None
    """The route that a REPLACE removes; None: the change is no REPLACE."""

    @property
    def text(self) -> str:
        """Describes the change for the log and for events."""
        route = self.route
        if self.verb is Verb.FORWARD:
            return f"let {route.target} forward packets of pods"
        was = f" instead of {self.old.target}" if self.old else ""
        return f"{self.verb.value} {route.destination} via {route.target} in {route.table}{was}"


@frozen
class Row:
    """A route as the status shows it."""

    route: Route
    node: str
    problem: str = ""
    """Why it does not carry the node's packets; empty: it does, or will by a change that is planned."""
    is_planned: bool = False


@frozen
class Plan:
    """What is to be done, and what there is."""

    changes: tuple[Change, ...]
    """Calls to the provider, in the order in which they are made."""
    rows: tuple[Row, ...]
    findings: tuple[Condition, ...] = ()

    def desired(self) -> frozenset[Key]:
        """The keys of the routes that leases need, those in the way of which is nothing."""
        return frozenset(row.route.key for row in self.rows if row.node and not row.problem)


class Cloud(Protocol):
    """A provider. Its calls block, and raise CloudError."""

    batch: int
    """How many changes `apply` takes."""

    def look(self, addresses: Collection[Address]) -> RouteTables:
        """The tables, and the nodes that have these addresses."""
        ...

    def apply(self, changes: Sequence[Change]) -> Mapping[Change, CloudError]:
        """Carries changes of one verb in one table out, and returns those that failed; raises if all did.

        A DELETE of what is gone fails by CHANGED.
        """
        ...

    def command(self, change: Change) -> str:
        """The provider's own command line that would do it."""
        ...


def wanted_routes(network: NetworkConfig, leases: Iterable[Lease]) -> list[DesiredRoute]:
    """The subnets that leases of cloud backends, which name no type, hold in the network; of overlapping ones one."""
    claims = [
        (lease, subnet)
        for lease in leases
        if not lease.is_idle and not lease.backend_type and (subnet := lease.subnet(IPV4)) is not None
        if any(contains(outer, subnet.cidr) for outer in network.cidrs(IPV4))
    ]
    lost = losses(network, claims)
    kept = [(lease, subnet) for lease, subnet in claims if (lease.name, IPV4.version) not in lost]
    return [DesiredRoute(subnet.cidr, lease.node or lease.name, subnet.public_address) for lease, subnet in kept]


def plan(wanted: Sequence[DesiredRoute], view: RouteTables, seen: Collection[Key], outer: Sequence[Network]) -> Plan:
    """What makes the tables have a route for each wanted subnet; `seen` are keys of routes that carried a lease.

    `outer` is where subnets lie: routes there that no lease needs are shown. A mark counts there only, for another
    cluster may write the same one.
    """
    leased = {each.destination for each in wanted}
    nodes = {target.name for target in view.targets.values()}
    changes: list[Change] = []
    rows: list[Row] = []
    findings: list[Condition] = []
    all_known = all(each.address in view.targets for each in wanted)
    for table in view.tables:
        there: dict[Network, list[Route]] = {}
        for route in table.routes:
            there.setdefault(route.destination, []).append(route)
        for each in wanted if table.is_used else ():
            found = there.get(each.destination, [])
            row, made = _one(each, table.name, found, view, nodes, seen)
            rows.append(row)
            changes += made
        for route in table.routes:
            if route.destination in leased if table.is_used else not all_known:
                continue
            is_inside = any(contains(each, route.destination) for each in outer)
            if route.key in seen or (route.is_marked and is_inside):
                changes.append(Change(Verb.DELETE, route))
                rows.append(Row(route, "", "no node needs this route", is_planned=True))
            elif table.is_used and is_inside:
                rows.append(Row(route, "", "no lease has this subnet, and the route is not ours"))
        created = sum(c.verb is Verb.CREATE and c.route.table == table.name for c in changes)
        findings += _limit(table, len(table.routes) + created)
    if not any(table.is_used for table in view.tables):
        rows += [_one(each, "", (), view, nodes, seen)[0] for each in wanted if each.address not in view.targets]
    used = {row.route.target for row in rows if row.node}
    for each in wanted:
        target = view.targets.get(each.address) if each.address else None
        if target and not target.forwards and target.name in used:
            changes.append(Change(Verb.FORWARD, Route("", each.destination, target.name)))
    changes.sort(key=lambda each: (list(Verb).index(each.verb), each.route.table, each.route.destination))
    rows.sort(key=lambda row: (row.route.table, row.route.destination, row.route.target))
    return Plan(tuple(changes), tuple(rows), tuple(findings))


def _one(
    each: DesiredRoute,
    table: str,
    found: Sequence[Route],
    view: RouteTables,
    nodes: Collection[str],
    seen: Collection[Key],
) -> tuple[Row, list[Change]]:
    """The row of a wanted subnet in a table that has these routes to it, and what has to change."""
    target = view.targets.get(each.address) if each.address else None
    if target is None:
        problem = (
            f"the cloud has no instance with address {each.address}" if each.address else "the lease has no address"
        )
        return Row(found[0] if found else Route(table, each.destination, "", "missing"), each.node, problem), []
    route = Route(table, each.destination, target.name)
    same = next((r for r in found if r.target == target.name), None)
    ours = [r for r in found if r.is_marked or r.key in seen or r.target in nodes or r.state == "blackhole"]
    foreign = next((r for r in found if r not in ours and r is not same), None)
    if foreign:
        problem = (
            f"a route of somebody else leads to {foreign.target}: delete it, or take the subnet out of the network"
        )
        return Row(foreign, each.node, problem), []
    if same and same.state != "disabled":
        others = [Change(Verb.DELETE, r) for r in ours if r is not same and r.handle]
        dead = f"{target.name} takes no packets: start the instance" if same.state == "blackhole" else ""
        return Row(same, each.node, dead), others
    if not found:
        return Row(replace(route, state="missing"), each.node, is_planned=True), [Change(Verb.CREATE, route)]
    return Row(replace(route, state="missing"), each.node, is_planned=True), [Change(Verb.REPLACE, route, found[0])]


def problems_of(rows: Iterable[Row]) -> list[Condition]:
    """A finding for each route that does not carry packets, or is nobody's."""
    return [
        found(
            "cloud.route",
            node=row.node,
            destination=row.route.destination,
            table=row.route.table or "?",
            reason=row.problem,
        )
        if row.node
        else found(
            "cloud.route-unneeded", destination=row.route.destination, table=row.route.table, reason=row.problem
        )
        for row in rows
        if row.problem and not row.is_planned
    ]


def _limit(table: Table, needed: int) -> list[Condition]:
    """Returns a finding if a table that nodes need is full or nearly full."""
    if not (table.is_used and table.most) or needed <= table.most * _NEARLY_FULL:
        return []
    return [
        found(
            "cloud.limit",
            table=table.name,
            needed=needed,
            most=table.most,
            weight=BROKEN if needed > table.most else SOON,
        )
    ]
