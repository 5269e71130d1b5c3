"""One listing of the prefix, put together for a decision. No IO."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.core.errors import InvalidInput
from services.core.family import Network
from services.core.flannel import parse_key
from services.core.lease import Lease
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.holders import Holder
from services.lease.stores.etcd.keyspace import Keyspace, Kind
from services.lease.stores.etcd.records import Item, Position


@dataclass(frozen=True, slots=True)
class Entry:
    """A subnet key and the holder key beside it."""

    name: str
    item: Item
    lease: Lease | None
    """None: the value does not parse; the subnet is taken all the same."""
    holder_item: Item | None
    holder: Holder | None
    """The holder, if it is valid."""

    @property
    def node(self) -> str:
        """The node that holds it, empty if none does."""
        return self.holder.node if self.holder else ""

    @property
    def reserved(self) -> bool:
        """Hangs on no etcd lease: an operator set it aside."""
        return self.item.etcd_lease == 0

    @property
    def cidrs(self) -> tuple[Network, ...]:
        """What it takes."""
        return tuple(subnet.cidr for subnet in self.lease.subnets) if self.lease else parse_key(self.name)


@dataclass(frozen=True, slots=True)
class Table:
    """What etcd held at one revision."""

    revision: int
    config: Item | None
    entries: Mapping[str, Entry]
    """By name, in the order of their keys. Keys that are no subnets are left out."""
    orphans: Mapping[str, Item]
    """Holders without a lease, by name."""


def read_table(keyspace: Keyspace, decoder: Decoder, items: Iterable[Item], position: Position) -> Table:
    """Puts a complete listing together."""
    found: dict[Kind, dict[str, Item]] = {kind: {} for kind in Kind}
    for item in items:
        kind, name = keyspace.classify(item.key)
        found[kind][name] = item
    subnets, holders = found[Kind.SUBNET], found[Kind.HOLDER]
    entries = (read_entry(decoder, name, item, holders.get(name)) for name, item in subnets.items())
    return Table(
        position.revision,
        next(iter(found[Kind.CONFIG].values()), None),
        {entry.name: entry for entry in entries if entry},
        {name: item for name, item in holders.items() if name not in subnets and _is_subnet(name)},
    )


def read_entry(decoder: Decoder, name: str, item: Item, holder_item: Item | None) -> Entry | None:
    """The two keys together; None if the name is no subnet."""
    try:
        lease = decoder.lease(name, item)
    except InvalidInput:
        return Entry(name, item, None, holder_item, None) if _is_subnet(name) else None
    try:
        holder = decoder.holder(name, holder_item) if holder_item else None
    except InvalidInput:
        holder = None
    return Entry(name, item, lease, holder_item, holder if holder and holder.holds(lease) else None)


def _is_subnet(name: str) -> bool:
    try:
        return bool(parse_key(name))
    except InvalidInput:
        return False
