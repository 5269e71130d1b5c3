"""A subnet key and the holder key beside it, put together. No IO."""

from dataclasses import dataclass

from services.core.errors import InvalidInput
from services.core.flannel import parse_key
from services.core.lease import Lease
from services.lease.claims import Claim
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.holders import Holder
from services.lease.stores.etcd.records import Item


@dataclass(frozen=True, slots=True)
class Entry:
    """What takes a subnet, as etcd has it."""

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
    def claim_order(self) -> int:
        """How old the claim is: of a known node when it wrote what the key says, else when the key was made.

        A node of ours puts its key only when it says something else; flanneld does at each renewal, too.
        """
        return self.item.revision if self.node else self.item.created

    @property
    def reserved(self) -> bool:
        """Hangs on no etcd lease: an operator set it aside."""
        return self.item.etcd_lease == 0

    @property
    def bound(self) -> bool:
        """Reserved for its node: not only the subnet, the holder too hangs on no etcd lease."""
        return self.reserved and bool(self.holder and self.holder_item and self.holder_item.etcd_lease == 0)

    @property
    def claim(self) -> Claim:
        """What it means for a decision."""
        cidrs, addresses = (self.lease.cidrs, self.lease.addresses) if self.lease else (parse_key(self.name), ())
        return Claim(self.name, self.node, cidrs, addresses, self.reserved, self.bound)


def read_entry(decoder: Decoder, name: str, item: Item, holder_item: Item | None) -> Entry | None:
    """The two keys together; None if the name is no subnet."""
    try:
        lease = decoder.lease(name, item)
    except InvalidInput:
        return Entry(name, item, None, holder_item, None) if is_subnet(name) else None
    try:
        holder = decoder.holder(name, holder_item) if holder_item else None
    except InvalidInput:
        holder = None
    return Entry(name, item, lease, holder_item, holder if holder and holder.holds(lease) else None)


def is_subnet(name: str) -> bool:
    """Whether the name of a key is that of a lease."""
    try:
        return bool(parse_key(name))
    except InvalidInput:
        return False
