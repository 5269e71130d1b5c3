"""Who holds a lease: flannel's value does not say, so it is kept beside it, under `<prefix>/holders/`."""

import json
import re
from ipaddress import IPv4Address
from typing import Final

from services.core.errors import InvalidInput
from services.core.flannel import parse_key
from services.core.gojson import GoObject
from services.core.lease import Lease
from services.core.notation import format_address
from services.core.record import record

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

    def holds(self, lease: Lease) -> bool:
        """Whether this is still true of the lease: a flanneld that took it over published other addresses."""
        if len(lease.subnets) == 1 and isinstance(address := lease.subnets[0].public_address, IPv4Address):
            return self.public_ip == format_address(address) and not self.public_ipv6  # as nearly all
        return (self.public_ip, self.public_ipv6) == _addresses(lease)


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
