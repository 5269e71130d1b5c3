"""One lease in etcd: flannel's lease key and our holder key beside it, read together. Pure."""

from typing import Final, NamedTuple

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.ipam.claims import Claim
from flannelette.services.core.leases.conflicts import identities_of
from flannelette.services.core.leases.flannel_json import parse_key
from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.stores.etcd.keys import Decoded, Holder, is_foreign, is_overwritten
from flannelette.services.lease.stores.etcd.rpc.values import Item

_OVERWRITTEN: Final = (
    "the value of {name} says {names}, where node {node}, which holds it, has {theirs}: another program has "
    "overwritten it, and the node puts it right once it is connected"
)
_ANOTHER_WAY: Final = (
    "the value of {name} says another MAC, key or backend than node {node}, which holds it and is alive, has put: "
    "another program has overwritten it, and the node puts it right"
)


class Entry(NamedTuple):
    """What takes a subnet, as etcd has it and as the history that was seen explains it."""

    name: str
    subnet: Decoded
    """The lease key, as etcd has it."""
    beside: Decoded | None
    """The holder key, as etcd has it."""
    holder: Decoded | None
    """The version of the holder key that counts: the last valid one."""
    node: str
    """The node that holds the lease; empty: none is known to."""
    lease: Lease | None
    """The lease as its key says; None: the value is invalid or another program's, though it takes the subnet."""
    served: Lease | None
    """The lease for watchers, with its node: the last one with a value that is not refused."""
    refused: str
    """Why the value of the lease key is not served; empty: it is."""
    reserved: bool
    """An operator set the subnet aside: the lease key is attached to no etcd lease."""
    bound: bool
    """Reserved for its node: the holder key is attached to no etcd lease either."""

    @property
    def etcd_lease(self) -> int:
        """The etcd lease of the node that holds it; 0: none is known."""
        return self.holder.item.etcd_lease if self.node and self.holder else 0

    @property
    def machine(self) -> str:
        """The token of the machine of the node that holds it; empty: unknown."""
        return self.holder.holder.machine if self.node and self.holder and self.holder.holder else ""

    @property
    def items(self) -> tuple[Item, Item | None]:
        """The lease key and the holder key, as they are in etcd."""
        return self.subnet.item, self.beside.item if self.beside else None

    @property
    def claim_order(self) -> int:
        """How old the claim is: of a known node when it wrote what the key says, else when the key was made.

        A node of ours puts its key only when it says something else; flanneld does at each renewal, too.
        """
        return self.subnet.item.revision if self.node else self.subnet.item.created

    @property
    def claim(self) -> Claim | None:
        """What the lease means for IPAM; None: the name of the key is no subnet."""
        if self.lease is not None:
            cidrs, addresses, identities = self.lease.cidrs, self.lease.addresses, identities_of(self.lease)
        else:
            try:
                cidrs = parse_key(self.name)
            except InvalidInput:
                return None
            addresses = self.holder.holder.addresses if self.node and self.holder and self.holder.holder else ()
            identities = tuple(address.packed for address in addresses)
        return Claim(self.name, self.node, cidrs, addresses, self.reserved, self.bound, identities, self.claim_order)


def read_entry(subnet: Decoded, beside: Decoded | None, known: Entry | None, *, is_alive: bool) -> Entry:
    """The two keys together.

    `known` is the entry of this name before, if the lease key existed then; `is_alive`: its node has a session.
    """
    name, item, lease, refused, node = subnet.name, subnet.item, subnet.lease, subnet.error, ""
    holder = known.holder if known is not None and beside is not None and beside.holder is None else beside
    said = holder.holder if holder is not None else None
    if holder is not None and said is not None and not is_foreign(item, holder.item):
        if is_overwritten(item, holder.item, said, lease, is_alive=is_alive):
            node, refused, lease = said.node, refused or _overwritten(name, said, lease), None
        elif lease is not None and said.holds(lease):
            node = said.node
    if refused:
        served = known.served if known is not None else None
    else:
        served = lease.held_by(node, item.revision) if lease is not None and node else lease
    reserved = item.etcd_lease == 0
    if reserved and lease is None and beside is not None and beside.item.etcd_lease:
        reserved = beside.item.created != item.created  # a value overwritten without an etcd lease reserves nothing
    bound = reserved and bool(node) and holder is not None and holder.item.etcd_lease == 0
    entry = Entry(name, subnet, beside, holder, node, lease, served, refused, reserved, bound)
    return _kept(entry, known) if known is not None and known.node and is_alive else entry


def _kept(entry: Entry, known: Entry) -> Entry:
    """The entry, given what was `known` of this key before, and that the node that held it then is alive.

    Only that node lets go of an ordinary lease, and its lease service then deletes the key: whoever else has changed
    one of the two keys has overwritten it. Nor is it a reservation by that: who reserves a lease leaves its value as
    it is. A reservation is let go of by its holder key alone, which is deleted or put by the node's lease service.
    """
    item, before = entry.subnet.item, known.subnet.item
    if item.created != before.created or (known.reserved and entry.node in ("", known.node)):
        return entry
    if entry.node == known.node:
        is_same = item.value == before.value and item.revision != before.revision
        return entry if item.etcd_lease or is_same else entry._replace(reserved=False, bound=False)
    return entry._replace(
        node=known.node, holder=known.holder, lease=None, reserved=known.reserved, bound=known.bound
    )


def _overwritten(name: str, holder: Holder, lease: Lease | None) -> str:
    if lease is not None and holder.holds(lease):
        return _ANOTHER_WAY.format(name=name, node=holder.node)
    names = " and ".join(map(str, lease.addresses)) if lease else ""
    theirs = " and ".join(map(str, holder.addresses))
    return _OVERWRITTEN.format(name=name, names=names or "no public address", node=holder.node, theirs=theirs)
