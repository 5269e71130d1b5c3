"""What a lease service must serve, worked out from a plain listing of etcd in the slowest and simplest way."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.flannel_json import parse_lease
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import NetworkConfig, parse_network
from tests.etcd.keys import PREFIX
from tests.etcd.server import EtcdServer


@dataclass(frozen=True)
class Truth:
    """The leases that etcd holds."""

    served: Mapping[str, Lease]
    """Valid, inside the network, and of overlapping ones those that come first."""
    unreadable: frozenset[str]
    """Subnet keys with a value that is none: the lease that was there before stays, if it was seen."""

    def nodes(self) -> list[str]:
        """The node of each lease that has one."""
        return sorted(lease.node for lease in self.served.values() if lease.node)


def truth_of(server: EtcdServer) -> Truth:
    listing = json.loads(server.etcdctl("get", "--prefix", f"{PREFIX}/", "-w", "json"))
    entries = {_text(kv["key"]).removeprefix(f"{PREFIX}/"): kv for kv in listing.get("kvs", [])}
    network = parse_network(_text(entries["config"]["value"]))
    leases: dict[str, tuple[tuple[bool, int, str], Lease]] = {}
    unreadable = set()
    for key, entry in entries.items():
        if key.startswith("subnets/"):
            name = key.removeprefix("subnets/")
            try:
                lease = parse_lease(name, base64.b64decode(entry.get("value", "")), reserved="lease" not in entry)
            except InvalidInput:
                unreadable.add(name)
                continue
            node = _holder(lease, entries.get(f"holders/{name}"))
            order = int(entry["mod_revision" if node else "create_revision"])
            leases[name] = (not node, order, name), replace(lease, node=node, claim_order=order)
    return Truth(_first_come(leases.values(), network), frozenset(unreadable))


def _first_come(ranked: Any, network: NetworkConfig) -> dict[str, Lease]:
    served: dict[str, Lease] = {}
    for _, lease in sorted(ranked, key=lambda each: each[0]):
        cidrs = [subnet.cidr for subnet in lease.subnets]
        taken = [subnet.cidr for other in served.values() for subnet in other.subnets]
        inside = all(any(_lies_in(cidr, family.cidr) for family in network.families) for cidr in cidrs)
        if inside and not any(a.version == b.version and a.overlaps(b) for a in cidrs for b in taken):
            served[lease.name] = lease
    return served


def _lies_in(cidr: Any, whole: Any) -> bool:
    return cidr.version == whole.version and bool(cidr.subnet_of(whole))


def _holder(lease: Lease, entry: Mapping[str, str] | None) -> str:
    try:
        holder = json.loads(base64.b64decode(entry["value"])) if entry else {}
    except ValueError:
        return ""
    addresses = [str(subnet.public_address) for subnet in lease.subnets]
    told = [a for a in (holder.get("public_ip"), holder.get("public_ipv6")) if a] if isinstance(holder, dict) else []
    return str(holder["node"]) if told and told == addresses else ""


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
