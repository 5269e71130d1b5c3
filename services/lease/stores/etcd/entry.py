"""A subnet key and the holder key beside it, put together. No IO."""

from contextlib import suppress
from dataclasses import dataclass, replace

from services.core.conflicts import identities_of
from services.core.errors import InvalidInput
from services.core.flannel import parse_key
from services.core.lease import Lease
from services.lease.claims import Claim
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.holders import Holder, is_foreign, is_overwritten
from services.lease.stores.etcd.records import Item


@dataclass(frozen=True, slots=True)
class Entry:
    """What takes a subnet, as etcd has it."""

    name: str
    item: Item
    lease: Lease | None
    """None: the value does not parse, or another program has overwritten it; the subnet is taken all the same."""
    holder_item: Item | None
    holder: Holder | None
    """The holder, if it is valid; of an overwritten lease the one that it was overwritten under."""

    @property
    def node(self) -> str:
        """The node that holds it, empty if none does."""
        return self.holder.node if self.holder else ""

    @property
    def claim_order(self) -> int:
        """How old the claim is: of a known node when it wrote what the key says, else when the key was made.

        A node of ours puts its key only when it says something else; flanneld does at each renewal, too.
        """
        return self.item.revision if self.node else self.item.created

    @property
    def reserved(self) -> bool:
        """Hangs on no etcd lease: an operator set it aside. Who overwrites a lease without one reserves nothing."""
        if self.item.etcd_lease:
            return False
        beside = self.holder_item if self.lease is None else None
        return beside is None or not beside.etcd_lease or beside.created != self.item.created

    @property
    def bound(self) -> bool:
        """Reserved for its node: not only the subnet, the holder too hangs on no etcd lease."""
        return self.reserved and bool(self.holder and self.holder_item and self.holder_item.etcd_lease == 0)

    @property
    def claim(self) -> Claim:
        """What it means for a decision."""
        if self.lease is not None:
            cidrs, addresses, identities = self.lease.cidrs, self.lease.addresses, identities_of(self.lease)
        else:
            cidrs, addresses = parse_key(self.name), self.holder.addresses if self.holder else ()
            identities = tuple(address.packed for address in addresses)
        return Claim(self.name, self.node, cidrs, addresses, self.reserved, self.bound, identities, self.claim_order)


def read_entry(decoder: Decoder, name: str, item: Item, holder_item: Item | None) -> Entry | None:
    """The two keys together; None if the name is no subnet."""
    lease = holder = None
    with suppress(InvalidInput):
        lease = decoder.lease(name, item)
    if lease is None and not is_subnet(name):
        return None
    with suppress(InvalidInput):
        holder = decoder.holder(name, holder_item) if holder_item else None
    if holder_item is None or holder is None or is_foreign(item, holder_item):
        return Entry(name, item, lease, holder_item, None)
    if is_overwritten(item, holder_item, holder, lease):
        return Entry(name, item, None, holder_item, holder)
    return Entry(name, item, lease, holder_item, holder if lease and holder.holds(lease) else None)


def as_held(entry: Entry, known: Entry) -> Entry:
    """The entry, given what was `known` of this key before, and that the node that held it then is alive.

    Only that node lets go of an ordinary lease, and its lease service then deletes the key: whoever else has changed
    one of the two keys has overwritten it. Nor is it a reservation by that: who reserves a lease leaves its value as
    it is. A reservation is let go of by its holder key alone, which is deleted or put by the node's lease service.
    """
    if entry.item.created != known.item.created or (known.reserved and entry.node in ("", known.node)):
        return entry
    if known.node == entry.node:
        is_taken_off = entry.item.etcd_lease == 0 and entry.item.value != known.item.value
        return replace(entry, item=_put_on(entry.item, known.item)) if is_taken_off else entry
    holder_item = entry.holder_item
    if holder_item is not None and known.holder_item is not None:
        holder_item = _put_on(holder_item, known.holder_item)
    return Entry(entry.name, _put_on(entry.item, known.item), None, holder_item, known.holder)


def _put_on(item: Item, known: Item) -> Item:
    """The item, as if it hung on the etcd lease that it was known to hang on."""
    return item._replace(etcd_lease=known.etcd_lease)


def is_subnet(name: str) -> bool:
    """Whether the name of a key is that of a lease."""
    try:
        return bool(parse_key(name))
    except InvalidInput:
        return False
