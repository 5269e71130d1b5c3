"""Who holds a lease: flannel's value does not say, so it is kept beside it, under `<prefix>/holders/`."""

import json
import re
from ipaddress import IPv4Address
from typing import Final

from services.core.errors import InvalidInput
from services.core.family import Address
from services.core.flannel import parse_key
from services.core.gojson import GoObject
from services.core.lease import Lease
from services.core.notation import format_address, parse_address
from services.core.record import record
from services.lease.stores.etcd.records import Item

_USUAL: Final = re.compile(
    r'\{"node":"([A-Za-z0-9._-]+)","public_ip":"([0-9.]*)","public_ipv6":"([0-9a-f:.]*)"\}', re.ASCII
)
"""What we write, which can mean nothing else: most holders need no JSON parser."""


@record
class Holder:
    """A node and the public addresses it had published when it said so."""

    node: str
    public_ip: str
    """Empty: none."""
    public_ipv6: str
    """Empty: none."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The public addresses, IPv4 first; what is no address is left out."""
        found = map(parse_address, (self.public_ip, self.public_ipv6))
        return tuple(address for address in found if address is not None)

    def holds(self, lease: Lease) -> bool:
        """Whether this is still true of the lease: a flanneld that took it over may publish other addresses."""
        if len(lease.subnets) == 1 and isinstance(address := lease.subnets[0].public_address, IPv4Address):
            return self.public_ip == format_address(address) and not self.public_ipv6  # as nearly all
        return (self.public_ip, self.public_ipv6) == _addresses(lease)


def is_foreign(item: Item, holder_item: Item) -> bool:
    """Whether another program has written the holder: a lease service puts a lease and its holder on one etcd lease.

    Such a holder counts for nothing. A reservation hangs on no etcd lease, so that this cannot be told of its holder.
    """
    return item.etcd_lease not in (0, holder_item.etcd_lease) and holder_item.revision > item.revision


def is_overwritten(item: Item, holder_item: Item, holder: Holder, lease: Lease | None) -> bool:
    """Whether another program has written the value of a lease that the holder holds. `lease`: what the value says.

    The key is the one that the holder was written beside, and now it says a first public address that is not the
    holder's, or nothing that can be read. Neither a lease service nor a flanneld does that: a flanneld knows its
    lease by that address, and takes no key that another has.
    """
    if not item.created <= holder_item.revision < item.revision:
        return False  # as nearly all
    first = next(iter(holder.addresses), None)
    return first is not None and (lease is None or first not in lease.addresses)


def holder_of(lease: Lease) -> Holder:
    """What to write beside a lease."""
    return Holder(lease.node, *_addresses(lease))


def parse_holder(name: str, value: bytes) -> Holder:
    """Reads the one of a lease. Raises InvalidInput, naming the key."""
    parse_key(name)  # raises if it is none
    if usual := _USUAL.fullmatch(value.decode(errors="replace")):
        return Holder(usual[1], usual[2], usual[3])
    key = f"holders/{name}"
    document = GoObject.parse(value, f"the value of {key}")
    holder = Holder(document.text("node"), document.text("public_ip"), document.text("public_ipv6"))
    if not holder.node:
        raise InvalidInput(f"the value of {key} names no node")
    return holder


def format_holder(holder: Holder) -> bytes:
    """The value, as compact JSON."""
    document = {"node": holder.node, "public_ip": holder.public_ip, "public_ipv6": holder.public_ipv6}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _addresses(lease: Lease) -> tuple[str, str]:
    """The public addresses, IPv4 first; empty: none."""
    ipv4 = ipv6 = ""
    for subnet in lease.subnets:
        if subnet.public_address is None:
            continue
        if subnet.cidr.version == 4:
            ipv4 = format_address(subnet.public_address)
        else:
            ipv6 = format_address(subnet.public_address)
    return ipv4, ipv6
