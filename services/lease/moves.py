"""Pending moves: nodes whose subnet does not fit the network configuration, and the call that moves one of them."""

from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import NotFound, NotYet, Unavailable
from services.core.pending import Move, hands_out, moves
from services.lease.broker import Broker
from services.lease.store import Store
from services.runtime.logs import get_logger

log = get_logger()

_NOT_OURS = (
    "the subnet of node {node} is its podCIDR, which cannot change: put the network configuration back, or delete "
    "the Node and let it join again"
)


class Moves:
    """The pending moves of a table, computed once for each revision: 10,000 leases take 30 ms."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: tuple[int, list[Move]] = (-1, [])

    @property
    def pending(self) -> list[Move]:
        """By node."""
        table = self._broker.table
        if self._known[0] != table.revision:
            self._known = table.revision, moves(table.leases, table.network)
        return self._known[1]

    async def carry_out(self, node: str, store: Store, *, dry_run: bool) -> Move:
        """Releases the node's lease, so that it acquires another subnet.

        Raises NotFound: nothing is pending for it; NotYet; Unavailable.
        """
        network = self._broker.table.network
        if network is None:
            raise Unavailable("the network configuration is not known yet: try again")
        move = next((move for move in self.pending if move.node == node), None)
        if move is None:
            raise NotFound(
                f"no network change is pending for node {node}: the configuration has room for its subnets"
            )
        if not hands_out(network):
            raise NotYet(_NOT_OURS.format(node=node))
        if not dry_run:
            log.warning("an operator moves a node to another subnet", node=node, lease=move.lease, to=move.where)
            await store.release(node, move.lease)
        return move


def move_to_proto(move: Move) -> pb.PendingMove:
    """As a message."""
    return pb.PendingMove(node=move.node, lease=move.lease, subnets=map(str, move.subnets), where=move.where)
