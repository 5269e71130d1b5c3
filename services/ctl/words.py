"""Durations, times, counts and leases as text for people, and the order in which people look for them."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.limits import nearest_time

_MOST_NODES: Final = 10
_BYTE_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def duration(seconds: float) -> str:
    """The two largest units, rounded down: `22 h 58 m`, `3 d`, `45 s`. Nothing is below `0 s`."""
    rest = max(int(seconds), 0)
    largest = next((i for i, (size, _) in enumerate(_UNITS) if rest >= size), len(_UNITS) - 1)
    parts: list[str] = []
    for size, unit in _UNITS[largest : largest + 2]:
        count, rest = divmod(rest, size)
        if count or not parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def short_time(time: Duration) -> str:
    """A delay: `12 ms`, `3.4 s`, `2 m 5 s`."""
    seconds = time.seconds + time.nanos / 1e9
    if seconds >= 60:
        return duration(seconds)
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(round(seconds * 1000), 1)} ms"


def took(microseconds: int) -> str:
    """A run time: `480 µs`, `1.2 ms`, `53 ms`, `3.4 s`, `2 m 5 s`."""
    if microseconds < 1000:
        return f"{microseconds} µs"
    if microseconds < 1_000_000:
        milliseconds = microseconds / 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    return f"{microseconds / 1e6:.1f} s" if microseconds < 60e6 else duration(microseconds / 1e6)


def until(time: Timestamp, now: datetime) -> str:
    """How long from now to then: `22 h 58 m`."""
    return duration((moment(time) - now).total_seconds())


def ago(time: Timestamp, now: datetime) -> str:
    """How long from then to now: `12 s ago`."""
    return f"{duration((now - moment(time)).total_seconds())} ago"


def moment(time: Timestamp) -> datetime:
    """The time, in UTC."""
    return datetime.fromtimestamp(nearest_time(time.seconds + time.nanos / 1e9), UTC)


def byte_count(number: float) -> str:
    """`0 B`, `1.3 kB`, `33 kB`: units of 1,000."""
    unit = 0
    while number >= 1000 and unit < len(_BYTE_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.0f} {_BYTE_UNITS[unit]}" if unit == 0 or number >= 10 else f"{number:.1f} {_BYTE_UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """`1 lease`, `2 leases`, `10,000 leases`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def mtu(size: int) -> str:
    """`mtu 1450`; empty if not known."""
    return f"mtu {size}" if size else ""


def phrase(*parts: str) -> str:
    """The parts that are not empty, with commas."""
    return ", ".join(part for part in parts if part)


def in_order(name: str) -> list[str | int]:
    """A sort key: h2 before h10."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", name))]


def shown_nodes(nodes: Sequence[str]) -> str:
    """The names, or the first of many."""
    more = len(nodes) - _MOST_NODES
    return ", ".join(nodes[:_MOST_NODES]) + (f" and {more} more" if more > 0 else "")


def by_address(cidrs: Iterable[str]) -> list[tuple[int, int, str]]:
    """A sort key: 10.5.9.0/24 before 10.5.10.0/24, IPv4 before IPv6, and what is no subnet last."""
    return [_place(cidr) for cidr in cidrs]


def _place(cidr: str) -> tuple[int, int, str]:
    try:
        network = ip_network(cidr)
    except ValueError:
        return (9, 0, cidr)
    return (network.version, int(network.network_address), cidr)


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


def subnets_of(lease: pb.Lease) -> tuple[str, ...]:
    """The subnets of a lease, one of each address family."""
    return tuple(subnet.cidr for subnet in lease.subnets)
