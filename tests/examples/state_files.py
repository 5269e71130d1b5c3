"""The file `SERVICE.state` as bytes: what a service has written, or is to find."""

from collections.abc import Iterable, Sequence

from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.cache import NodeState, kind_of, records_of, state_in
from flannelette.services.runtime.state import Named, pack, sealed, unpack


def encode(
    service: str,
    node: str,
    own: Lease | None,
    previous: Sequence[Network],
    table: Iterable[Named],
    earlier: Sequence[NetworkConfig] = (),
    machine: str = "",
) -> list[bytes]:
    """The lines of the file: see `records_of`."""
    kind = kind_of(service)
    return sealed(kind, pack(kind, records_of(node, own, previous, table, earlier, machine)))


def decode(service: str, data: bytes, node: str, machine: str = "") -> NodeState:
    """The state of this service, node and machine in the bytes of the file. Raises UnreadableState."""
    return state_in(unpack(kind_of(service), data).records, node, machine)
