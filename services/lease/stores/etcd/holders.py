"""Who holds a lease: flannel's value does not say, so it is kept beside it, under `<prefix>/holders/`."""

import json
from dataclasses import dataclass

from services.core.errors import InvalidInput
from services.core.family import IPV4, IPV6, Family
from services.core.flannel import parse_key
from services.core.gojson import GoObject
from services.core.lease import Lease


@dataclass(frozen=True, slots=True)
class Holder:
    """A node and the public addresses it had published when it said so."""

    node: str
    public_ip: str
    """Empty: none."""
    public_ipv6: str
    """Empty: none."""

    def holds(self, lease: Lease) -> bool:
        """Whether this is still true of the lease: a flanneld that took it over published other addresses."""
        return (self.public_ip, self.public_ipv6) == (_address(lease, IPV4), _address(lease, IPV6))


def holder_of(lease: Lease) -> Holder:
    """What to write beside a lease."""
    return Holder(lease.node, _address(lease, IPV4), _address(lease, IPV6))


def parse_holder(name: str, value: bytes) -> Holder:
    """Reads the one of a lease. Raises InvalidInput, naming the key."""
    parse_key(name)
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


def _address(lease: Lease, family: Family) -> str:
    subnet = lease.subnet(family)
    return str(subnet.public_address) if subnet and subnet.public_address else ""
