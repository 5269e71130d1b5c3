"""What the leases ask of a kernel, and what it has: read with `ip`, `bridge` and `iptables-save`."""

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final

_BREAK: Final = "\n---\n"
_DEVICE: Final = "flannel.1"
_PERMANENT: Final = "PERMANENT"


@dataclass(frozen=True, slots=True)
class Lease:
    """One as etcd has it."""

    subnet: IPv4Network
    public: IPv4Address
    backend: str
    mac: str

    @property
    def vtep(self) -> IPv4Address:
        """The address of the node's overlay device."""
        return self.subnet.network_address


def leases_in(answer: Mapping[str, Any]) -> dict[IPv4Address, Lease]:
    """Reads the leases in etcd's answer to a listing, by public address."""
    found = {}
    for pair in answer.get("kvs", ()):
        with suppress(ValueError, KeyError, TypeError):  # it is no lease
            value = json.loads(b64decode(pair["value"]))
            name, public = b64decode(pair["key"]).decode().rpartition("/")[2], IPv4Address(value["PublicIP"])
            mac = (value.get("BackendData") or {}).get("VtepMAC", "")
            found[public] = Lease(IPv4Network(name.replace("-", "/")), public, value["BackendType"], mac)
    return found


def wanted(own: Lease, peers: Iterable[Lease]) -> Iterator[str]:
    """The overlay's objects on a node, a line each."""
    if own.backend == "vxlan":
        yield f"device {_DEVICE} {own.mac} {own.vtep}/32 up"
    for peer in peers:
        if peer.backend == "vxlan":
            yield f"route {peer.subnet} via {peer.vtep} dev {_DEVICE}"
            yield f"neighbour {peer.vtep} lladdr {peer.mac} dev {_DEVICE}"
            yield f"fdb {peer.mac} dst {peer.public} dev {_DEVICE}"
        else:
            yield f"route {peer.subnet} via {peer.public} dev eth0"


def look(iptables: str) -> str:
    """The command for a shell in a host's namespace, whose output is for `actual`."""
    mark = f"; printf '{_BREAK}'; ".replace("\n", "\\n")
    return mark.join(
        (
            "ip -j route show table all proto 77",
            "ip -j neigh show nud permanent",
            "bridge -j fdb show",
            "ip -j addr show",
            f"{iptables}-save 2>/dev/null",
        )
    )


def actual(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The overlay's objects and the firewall's rules of a node, a line each."""
    *parts, rules = text.split(_BREAK)
    routes, neighbours, entries, links = (json.loads(part or "[]") for part in parts)
    lines = [f"route {route['dst']} via {route.get('gateway')} dev {route.get('dev')}" for route in routes]
    lines += [
        f"neighbour {one['dst']} lladdr {one.get('lladdr')} dev {one['dev']}"
        for one in neighbours
        if _PERMANENT in one["state"] and one["dev"].startswith("flannel")
    ]
    lines += [
        f"fdb {one['mac']} dst {one.get('dst')} dev {one['ifname']}"
        for one in entries
        if one["ifname"].startswith("flannel")
    ]
    for link in links:
        if link.get("ifname", "").startswith("flannel"):
            own = [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["family"] == "inet"]
            state = "up" if "UP" in link["flags"] else "down"
            lines.append(" ".join(("device", link["ifname"], link["address"], *own, state)))
    return frozenset(lines), frozenset(_rules(rules))


def _rules(text: str) -> Iterator[str]:
    """flannel's chains and rules, each with its place in its chain, and the policy of FORWARD."""
    table, places = "", Counter[str]()
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":FORWARD") or (line.startswith(":") and "FLANNEL" in line):
            yield f"{table} {line.rpartition(' ')[0]}"
        elif line.startswith("-A") and "FLANNEL" in line:
            chain = f"{table} {line.split()[1]}"
            places[chain] += 1
            yield f"{chain} {places[chain]}: {line.partition(' ')[2]}"
