"""The state of a node that a service caches on disk for a reboot, and its records."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from flannelette.services.core.family import Network
from flannelette.services.core.formats.ip_text import parse_cidr
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, Table, Upserted
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime import older_state
from flannelette.services.runtime.cache.table_records import network_in, step_in, table_in
from flannelette.services.runtime.lease.wire import step_to_bytes
from flannelette.services.runtime.state import Named, Older, Record, UnreadableState

_NODE: Final = "node"
_OWN: Final = "own"
_EARLIER: Final = "earlier"
_OF_NODE: Final = frozenset((_NODE, _OWN, _EARLIER))


@dataclass(frozen=True, slots=True)
class NodeState:
    """The cached state of one node."""

    node: str
    own: Lease | None
    """The lease that the node has published."""
    previous_subnets: tuple[Network, ...]
    """The last one first."""
    table_records: Sequence[Record]
    """The last complete lease table."""
    earlier_networks: tuple[NetworkConfig, ...] = ()
    """Configurations before the one in force, whose backends some peer still had; the last one first."""

    @property
    def network(self) -> NetworkConfig | None:
        """The network configuration that was in force on the node; None if it cannot be read."""
        return network_in(self.table_records)

    def table(self) -> Table:
        """The complete table with the own lease, without a cursor to resume from. Raises UnreadableState."""
        table = table_in(self.table_records)
        if table.network is None or not table.synced:
            raise UnreadableState("the file has no complete lease table")
        if self.own is not None:
            table.leases[self.own.name] = self.own
        return table


def kind_of(service: str) -> str:
    """The kind of the file of a service."""
    return f"{service}.state"


def older_of(service: str) -> Older:
    """The reader of the file that a release before 0.3 has left."""
    return partial(older_state.node_state, kind_of(service))


def records_of(
    node: str,
    own: Lease | None,
    previous: Sequence[Network],
    table: Iterable[Named],
    earlier: Sequence[NetworkConfig] = (),
    machine: str = "",
) -> Iterator[Named]:
    """The state as records, among them those of its lease table. `machine`: the token of this one."""
    identity = {"node": node, "machine": machine} if machine else {"node": node}
    head = [Record.of_json(_NODE, {**identity, "former_subnets": [str(each) for each in previous]})]
    if own is not None:
        head.append(Record.of_bytes(_OWN, step_to_bytes(Step(changes=(Upserted(own),)))))
    return chain(head, (Record.of_bytes(_EARLIER, step_to_bytes(Step(network=each))) for each in earlier), table)


def state_in(records: Sequence[Record], node: str, machine: str = "") -> NodeState:
    """The state of this node and machine in the records of a file. Raises UnreadableState."""
    of_node = [each for each in records if each.name in _OF_NODE]
    steps = {name: [step_in(each) for each in of_node if each.name == name] for name in (_OWN, _EARLIER)}
    header: Any = next((each.json() for each in of_node if each.name == _NODE), None)
    if header is None:
        raise UnreadableState(f"the record {_NODE}, which every file has, is damaged")
    try:
        if header["node"] != node:
            raise UnreadableState(f"the file is of node {header['node']!a}, and this is node {node!a}")
        if machine and header.get("machine", machine) != machine:
            raise UnreadableState("the file is of another machine")
        previous = [parse_cidr(text) for text in header["former_subnets"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableState(f"the record {_NODE} cannot be read: {error}") from None
    own = next((c.lease for step in steps[_OWN] for c in step.changes if isinstance(c, Upserted)), None)
    networks = tuple(step.network for step in steps[_EARLIER] if step.network is not None)
    table = [each for each in records if each.name not in _OF_NODE]
    return NodeState(node, own, tuple(each for each in previous if each is not None), table, networks)
