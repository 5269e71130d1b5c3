"""Leases, reservations, the network configuration, and the refused entries of the store."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from ipaddress import ip_network
from typing import Final

from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.ctl.render.layout import Width, fold, lines, table
from flannelette.services.ctl.units import ago, count, phrase, until


def leases_text(response: pb.ListLeasesResponse, now: datetime, width: Width, *, wide: bool = False) -> Text:
    """All leases, by address; on a terminal with the network they are in."""
    has_imports = any(lease.cluster for lease in response.leases)
    rows = [
        (
            tuple(s.cidr for s in lease.subnets) or (lease.name,),
            *(((lease.cluster,),) if has_imports else ()),
            (lease.node.removeprefix(f"{lease.cluster}/"),),
            tuple(s.public_address for s in lease.subnets),
            (lease.backend_type,),
            (_expires_in(lease, now),),
            tuple(data_words(s) for s in lease.subnets),
            *(((lease.name,), (str(lease.claim_order or ""),)) if wide else ()),
        )
        for lease in sorted(response.leases, key=lambda lease: by_address([s.cidr for s in lease.subnets]))
    ]
    more, cluster = ("LEASE", "CLAIM") if wide else (), ("CLUSTER",) if has_imports else ()
    titles = ("SUBNET", *cluster, "NODE", "ADDRESS", "BACKEND", "EXPIRES IN", "DATA", *more)
    listed = table(titles, rows, width)
    if width is None:
        return listed
    imported = sum(bool(lease.cluster) for lease in response.leases)
    others = f", and {imported} of other clusters" if imported else ""
    network = network_words(response.network) or "a network not known yet"
    summary = f"{count(len(rows) - imported, 'lease')} in {network}{others}"
    return lines([listed, "", fold(Text(summary, style="dim"), width)] if rows else [summary])


def lease_remarks(response: pb.ListLeasesResponse) -> list[str]:
    """Why the table may not be the present one, and what keeps the configuration from being in force."""
    remarks = []
    if response.HasField("store") and not response.store.connected:
        remarks.append(f"these are the last leases known: {store_words(response.store)}")
    if response.network_error:
        remarks.append(f"the stored network configuration is not in force: {response.network_error}")
    return remarks


def network_words(network: pb.Network) -> str:
    """`10.5.0.0/16 (a /24 per node), vxlan`; empty if there is none."""
    families = [f.cidr + (f" (a /{f.subnet_length} per node)" if f.subnet_length else "") for f in network.families]
    return phrase(*families, network.backend_type)


def store_words(store: pb.StoreStatus) -> str:
    """`etcd, connected`, or why it is not."""
    if store.connected:
        return f"{store.kind}, connected"
    return f"the store ({store.kind}) is away" + (f": {store.error}" if store.error else "")


def data_words(subnet: pb.Subnet) -> str:
    """What peers need to know of this node's backend: `vni 1 c6:d2:32:6f:8f:44`."""
    match subnet.WhichOneof("backend_data"):
        case "vxlan":
            return f"vni {subnet.vxlan.vni} {subnet.vxlan.mac}"
        case "wireguard":
            return subnet.wireguard.public_key + (f" port {subnet.wireguard.port}" if subnet.wireguard.port else "")
        case "opaque_json":
            return subnet.opaque_json
    return ""


def by_address(cidrs: Iterable[str]) -> list[tuple[int, int, str]]:
    """A sort key: 10.5.9.0/24 before 10.5.10.0/24, IPv4 before IPv6, and what is no subnet last."""
    return [_place(cidr) for cidr in cidrs]


def _place(cidr: str) -> tuple[int, int, str]:
    try:
        network = ip_network(cidr)
    except ValueError:
        return (9, 0, cidr)
    return (network.version, int(network.network_address), cidr)


def _expires_in(lease: pb.Lease, now: datetime) -> str:
    if lease.HasField("expire_time"):
        return until(lease.expire_time, now)
    return "never" if lease.reserved else ""


def reserved_text(lease: pb.Lease) -> Text:
    """`10.5.7.0/24 is reserved for h9`."""
    subnets = " and ".join(subnet.cidr for subnet in lease.subnets)
    return lines([f"{subnets} is reserved for {lease.node or 'no node: it stays free'}"])


def unreserved_text(name: str, before: pb.Lease | None) -> str:
    """`10.5.7.0/24 is no longer reserved for h9`; `before` is the reservation, as far as it was known."""
    if before is None:
        return f"{name} is no longer reserved"
    is_used = before.node and any(subnet.public_address for subnet in before.subnets)
    whose = f"; it stays the lease of {before.node}" if is_used else f" for {before.node}" if before.node else ""
    return f"{' and '.join(_subnets(before)) or name} is no longer reserved{whose}"


def released_text(node: str, name: str, held: Sequence[pb.Lease] | None) -> Text:
    """`h1 no longer holds 10.5.9.0/24`, or that h1 held nothing; `held` is what it held before, None: not known."""
    if held is None:
        return lines([f"{node or 'this node'} no longer holds {name}, if it did"])
    if not held:
        return lines([f"{node or 'this node'} holds no lease{f' {name}' if name else ''}: nothing is released"])
    return lines(
        f"{node} no longer holds {' and '.join(_subnets(lease)) or lease.name}"
        + ("; it stays reserved" if lease.reserved else "")
        for lease in held
    )


def reservations_text(leases: Iterable[pb.Lease], width: Width) -> Text:
    """A row a reservation, by address; in use means that a node publishes an address with it."""
    rows = [
        (_subnets(lease), (lease.name,), (lease.node,), tuple(s.public_address for s in lease.subnets))
        for lease in sorted(leases, key=lambda lease: by_address(_subnets(lease)))
    ]
    return table(("SUBNET", "NAME", "NODE", "USED BY"), rows, width) if rows else lines(["nothing is reserved"])


def reclaimed_text(response: pb.ReclaimLeasesResponse, now: datetime, width: Width, *, dry_run: bool) -> Text:
    """A row a lease, then how many."""
    rows = [
        (
            _subnets(each.lease),
            (each.lease.node,),
            tuple(s.public_address for s in each.lease.subnets),
            (ago(each.last_seen_time, now) if each.HasField("last_seen_time") else "",),
        )
        for each in sorted(response.reclaimed, key=lambda each: by_address(_subnets(each.lease)))
    ]
    if not rows:
        return lines(["there is no lease to take back"])
    done = "would be taken back" if dry_run else "taken back"
    return lines([table(("SUBNET", "NODE", "ADDRESS", "SEEN"), rows, width), f"{count(len(rows), 'lease')} {done}"])


def renumbered_text(move: pb.PendingMove, *, dry_run: bool) -> Text:
    """`h1 would move from 10.5.1.0/24 to a /24 from 10.6.1.0 to 10.6.255.0`."""
    moves = "would move" if dry_run else "moves"
    after = "" if dry_run else "; recreate its pods"
    return lines([f"{move.node} {moves} from {' and '.join(move.subnets)} to {move.where}{after}"])


def _subnets(lease: pb.Lease) -> tuple[str, ...]:
    return tuple(subnet.cidr for subnet in lease.subnets)


_KINDS: Final = {
    pb.REFUSAL_KIND_UNREADABLE: "unreadable",
    pb.REFUSAL_KIND_OVERLAP: "overlap",
    pb.REFUSAL_KIND_OUTSIDE_NETWORK: "outside",
}
_MOST_NAMES: Final = 20
"""Shown on a terminal; a pipe gets all."""


def quarantine_text(response: pb.ListQuarantineResponse, now: datetime, width: Width) -> Text:
    """A row a key, then what is held back. A reason names the other lease."""
    rows = [((key.key,), (_KINDS.get(key.kind, ""),), (_since(key, now),), (key.reason,)) for key in response.keys]
    parts: list[str | Text] = [table(("KEY", "KIND", "SEEN", "REASON"), rows, width)] if rows else []
    if rows and response.held_removals:
        parts.append("")
    if response.held_removals:
        parts.append(held_text(response, now, width))
    return lines(parts or ["nothing is quarantined, and no removal is held back"])


def held_text(response: pb.ListQuarantineResponse, now: datetime, width: Width) -> Text:
    """How many, why, and which."""
    since = ago(response.held_since_time, now).removesuffix(" ago") if response.HasField("held_since_time") else "now"
    head = f"{count(len(response.held_removals), 'removal')} held back for {since}: {response.held_reason}"
    return lines([fold(head, width, 2), _names(response.held_removals, width)])


def removed_text(response: pb.ConfirmRemovalResponse, width: Width) -> Text:
    """How many, and which."""
    return lines([f"{count(len(response.removed), 'lease')} removed:", _names(response.removed, width)])


def _names(names: Sequence[str], width: Width) -> Text:
    shown = list(names) if width is None else list(names[:_MOST_NAMES])
    more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    return fold(f"  {' '.join(shown)}{more}", width, 2)


def _since(key: pb.QuarantinedKey, now: datetime) -> str:
    return ago(key.first_seen_time, now) if key.HasField("first_seen_time") else ""
