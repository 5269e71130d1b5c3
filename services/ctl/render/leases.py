"""Leases and the network configuration."""

from collections.abc import Iterable
from datetime import datetime
from ipaddress import ip_network

from flannelette.lease.v1 import lease_pb2 as pb
from rich.text import Text

from services.ctl.render.layout import Width, fold, lines, table
from services.ctl.words import count, phrase, until


def leases_text(response: pb.ListLeasesResponse, now: datetime, width: Width) -> Text:
    """All leases, by address; on a terminal with the network they are in."""
    rows = [
        (
            tuple(s.cidr for s in lease.subnets) or (lease.name,),
            (lease.node,),
            tuple(s.public_address for s in lease.subnets),
            (lease.backend_type,),
            (_expires_in(lease, now),),
            tuple(data_words(s) for s in lease.subnets),
        )
        for lease in sorted(response.leases, key=lambda lease: by_address([s.cidr for s in lease.subnets]))
    ]
    listed = table(("SUBNET", "NODE", "ADDRESS", "BACKEND", "EXPIRES IN", "DATA"), rows, width)
    if width is None:
        return listed
    summary = f"{count(len(rows), 'lease')} in {network_words(response.network) or 'a network not known yet'}"
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
