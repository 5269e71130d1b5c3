"""Kernel objects as the tools of the field print them, and the commands that make them.

Routes, neighbours, FDB entries, FOU ports and xfrm policies are as `ip` and `bridge` have them, WireGuard's as `wg`,
and what charon has is in the words of vici.
"""

import socket
import struct
import sys
import time
from base64 import b64encode
from collections.abc import Mapping
from errno import errorcode
from os import strerror
from typing import Final

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.objects import (
    BLOCK,
    RT_SCOPE_UNIVERSE,
    RT_TABLE_MAIN,
    RTN_UNICAST,
    RTPROT_BOOT,
    AllowedIps,
    FdbEntry,
    FouPort,
    IkeConnection,
    IkeKey,
    Neighbour,
    Route,
    Verb,
    WireguardDevice,
    WireguardPeer,
    XfrmPolicy,
)
from flannelette.services.dataplane.netlink.uapi import attribute, attributes

_PROTOCOLS: Final = {1: "redirect", 2: "kernel", 3: "boot", 4: "static", 9: "ra", 16: "dhcp", 186: "bgp", 188: "ospf"}
_SCOPES: Final = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_TYPES: Final = dict(
    enumerate("none unicast local broadcast anycast multicast blackhole unreachable prohibit throw nat".split())
)
_TABLES: Final = {253: "default", 254: "main", 255: "local"}
_RTAX_MTU: Final = 2
_METRICS: Final = {
    1: "lock",
    _RTAX_MTU: "mtu",
    3: "window",
    8: "advmss",
    10: "hoplimit",
    11: "initcwnd",
    14: "initrwnd",
}

DeviceNames = Mapping[int, str]
"""Interface index to name; `if7` is shown for one that is not there."""


def route(item: Route, device_names: DeviceNames) -> str:
    """Prints a route as `ip route show` does, without `pref medium` of IPv6 routes."""
    rest = dict(attributes(item.rest))
    return _join(
        "" if item.route_type == RTN_UNICAST else _named(_TYPES, item.route_type),
        _destination(item),
        f"nhid {number(rest.pop(uapi.RTA_NH_ID))}" if uapi.RTA_NH_ID in rest else "",
        _where(item, device_names),
        "" if item.protocol == RTPROT_BOOT else f"proto {_named(_PROTOCOLS, item.protocol)}",
        f"scope {_named(_SCOPES, item.scope)}" if item.scope else "",
        f"src {address(rest.pop(uapi.RTA_PREFSRC))}" if uapi.RTA_PREFSRC in rest else "",
        f"metric {item.metric}" if item.metric else "",
        "onlink" if item.onlink else "",
        *(_attribute(kind, value, device_names) for kind, value in rest.items()),
    )


def route_command(verb: Verb, item: Route, device_names: DeviceNames) -> str:
    """`ip route replace ...`; of `Route.rest` with the source address and metrics only."""
    source = dict(attributes(item.rest)).get(uapi.RTA_PREFSRC)
    return _join(
        "ip" if item.family == uapi.AF_INET else "ip -6",
        f"route {verb}",
        "" if item.route_type == RTN_UNICAST else _named(_TYPES, item.route_type),
        _destination(item),
        _where(item, device_names),
        f"proto {_named(_PROTOCOLS, item.protocol)}",
        _command_scope(item),
        f"src {address(source)}" if source else "",
        f"metric {item.metric}" if item.metric else "",
        "onlink" if item.onlink else "",
        metrics_text(item),
    )


def metrics_text(item: Route) -> str:
    """Metrics of a route as `ip route show` prints them, such as `mtu 1350`; empty: none."""
    return _attribute(uapi.RTA_METRICS, dict(attributes(item.rest)).get(uapi.RTA_METRICS, b""), {})


def mtu_of(item: Route) -> int:
    """The MTU that a route has for itself; 0: none."""
    metrics = dict(attributes(dict(attributes(item.rest)).get(uapi.RTA_METRICS, b"")))
    return number(metrics.get(_RTAX_MTU, b""))


def with_mtu(item: Route, mtu: int) -> Route:
    """The route with an MTU, in the place of its other metrics; 0: without any."""
    if not (item.rest or mtu):
        return item
    others = b"".join(attribute(kind, value) for kind, value in attributes(item.rest) if kind != uapi.RTA_METRICS)
    metrics = attribute(uapi.RTA_METRICS, attribute(_RTAX_MTU, struct.pack("=I", mtu))) if mtu else b""
    return item._replace(rest=metrics + others)


def neighbour(item: Neighbour, device_names: DeviceNames) -> str:
    """Prints a neighbour as `ip neigh show` does."""
    return f"{address(item.dst)} dev {_device(item.ifindex, device_names)} lladdr {mac(item.mac)} PERMANENT"


def neighbour_command(verb: Verb, item: Neighbour, device_names: DeviceNames) -> str:
    """Prints the command `ip neigh replace ...`, or with another verb."""
    device = _device(item.ifindex, device_names)
    if verb == "del":
        return f"ip neigh del {address(item.dst)} dev {device}"
    return f"ip neigh {verb} {address(item.dst)} lladdr {mac(item.mac)} dev {device} nud permanent"


def fdb_entry(item: FdbEntry, device_names: DeviceNames) -> str:
    """Prints a forwarding entry as `bridge fdb show` does."""
    return f"{_fdb(item, device_names)} self permanent"


def fdb_command(verb: Verb, item: FdbEntry, device_names: DeviceNames) -> str:
    """Prints the command `bridge fdb replace ...`, or with another verb."""
    return f"bridge fdb {verb} {_fdb(item, device_names)} self" + (" permanent" if verb == "replace" else "")


def address(packed: bytes) -> str:
    """Prints an address, such as `10.5.2.0` or `fd00:10:5:2::`."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def mac(packed: bytes) -> str:
    """Prints a MAC address, such as `c6:d2:32:6f:8f:44`."""
    return packed.hex(":")


def refusal(error: int, detail: str) -> str:
    """Why the kernel refused: its own words if it has some, then the errno."""
    reason = f"{strerror(error)} ({errorcode.get(error, error)})"
    return f"{detail.rstrip('.')}: {reason}" if detail else reason


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


def _named(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))


def _device(ifindex: int, device_names: DeviceNames) -> str:
    return device_names.get(ifindex, f"if{ifindex}")


def _destination(route: Route) -> str:
    if route.length == 0:
        return "default"
    whole = route.length == 8 * len(route.dst)
    return address(route.dst) if whole else f"{address(route.dst)}/{route.length}"


def _where(route: Route, device_names: DeviceNames) -> str:
    return _join(
        f"tos {route.tos:#04x}" if route.tos else "",
        f"via {address(route.gateway)}" if route.gateway else "",
        f"dev {_device(route.ifindex, device_names)}" if route.ifindex else "",
        "" if route.table == RT_TABLE_MAIN else f"table {_named(_TABLES, route.table)}",
    )


def _command_scope(route: Route) -> str:
    # `ip` guesses `link` for an IPv4 route out of a device without a gateway, else `global`; IPv6 has no scopes.
    is_direct = route.route_type == RTN_UNICAST and not route.gateway and route.family == uapi.AF_INET
    usual = None if is_direct else RT_SCOPE_UNIVERSE
    return "" if route.scope == usual else f"scope {_named(_SCOPES, route.scope)}"


def _fdb(entry: FdbEntry, device_names: DeviceNames) -> str:
    return _join(
        mac(entry.mac),
        f"dev {_device(entry.ifindex, device_names)}",
        f"dst {address(entry.dst)}" if entry.dst else "",
        f"port {entry.port}" if entry.port else "",
        f"vni {entry.vni}" if entry.vni else "",
        f"via {_device(entry.via, device_names)}" if entry.via else "",
    )


def _attribute(kind: int, value: bytes, device_names: DeviceNames) -> str:
    if kind == uapi.RTA_METRICS:
        return _join(*(f"{_named(_METRICS, name)} {number(inner)}" for name, inner in attributes(value)))
    if kind == uapi.RTA_MULTIPATH:
        return _join(*_next_hops(value, device_names))
    return f"attribute-{kind} {value.hex()}"


def number(value: bytes) -> int:
    """An integer of the kernel, in this machine's order of bytes."""
    return int.from_bytes(value, sys.byteorder)


def _next_hops(value: bytes, device_names: DeviceNames) -> list[str]:
    """Reads the next hops of a route (struct rtnexthop, linux/rtnetlink.h): length, flags, weight minus one, device;
    then its attributes.
    """
    hops, offset = [], 0
    while offset + 8 <= len(value):
        length, _, weight, ifindex = struct.unpack_from("=HBBi", value, offset)
        if length < 8:
            break
        inner = dict(attributes(value[offset + 8 : offset + length]))
        gateway = inner.get(uapi.RTA_GATEWAY)
        via = f"via {address(gateway)}" if gateway else ""
        hops.append(_join("nexthop", via, f"dev {_device(ifindex, device_names)}", f"weight {weight + 1}"))
        offset += (length + 3) & ~3
    return hops


def fou_port(item: FouPort, names: DeviceNames) -> str:
    """`port 8285 ipproto 4 local 10.99.0.11`, as `ip fou show` has it."""
    return f"port {item.port} ipproto 4 local {address(item.local)}"


def fou_command(verb: Verb, item: FouPort, names: DeviceNames) -> str:
    """Prints the command `ip fou add ...` or `ip fou del ...`."""
    return f"ip fou {'add' if verb == 'replace' else 'del'} {fou_port(item, names)}"


DIRECTIONS: Final = ("in", "out", "fwd")
MARK: Final = "flannelette"
"""Begins the names of what is ours in charon."""


def policy(item: XfrmPolicy, names: DeviceNames) -> str:
    """`src 10.5.1.0/24 dst 10.5.2.0/24 dir out priority 0 tmpl src ... proto esp reqid 11 mode tunnel`."""
    words = [_selector(item)]
    if item.action == BLOCK:
        words.append("action block")
    words.append(f"priority {item.priority}")
    if item.tunnel_src:
        ends = f"src {address(item.tunnel_src)} dst {address(item.tunnel_dst)}"
        words.append(f"tmpl {ends} proto esp reqid {item.reqid} mode tunnel" + " level use" * item.is_optional)
    return " ".join(words) + (" and more" if item.rest else "")


def policy_command(verb: Verb, item: XfrmPolicy, names: DeviceNames) -> str:
    """`ip xfrm policy update ...`."""
    if verb == "del":
        return f"ip xfrm policy del {_selector(item)}"
    return f"ip xfrm policy update {policy(item, names)}"


def ike_key(item: IkeKey, names: DeviceNames) -> str:
    """`shared flannelette-10.99.0.12 type IKE owners 10.99.0.12 data (hidden)`."""
    return f"shared {key_id(item)} type IKE owners {item.owner} data {item.psk}"


def ike_key_command(verb: Verb, item: IkeKey, names: DeviceNames) -> str:
    """The command of vici."""
    return f"vici unload-shared {key_id(item)}" if verb == "del" else f"vici load-{ike_key(item, names)}"


def connection(item: IkeConnection, names: DeviceNames) -> str:
    """`conn 10.99.0.11 10.5.27.0/24 === 10.99.0.12 10.5.53.0/24 esp aes128...`."""
    encap = " encap" if item.encap else ""
    known = f" id {item.local_id}" if item.local_id != item.local else ""
    return (
        f"conn {item.local}{known} {item.own_subnet} === {item.remote} {item.peer_subnet}{encap} esp {item.proposal}"
    )


def connection_command(verb: Verb, item: IkeConnection, names: DeviceNames) -> str:
    """The command of vici."""
    if verb == "del":
        return f"vici unload-conn {connection_name(item)}"
    return f"vici load-{connection(item, names)}"


def key_id(item: IkeKey) -> str:
    """Returns the id by which charon knows the key."""
    return f"{MARK}-{item.owner}"


def connection_name(item: IkeConnection) -> str:
    """Says everything of it, as charon tells of a connection not much more than its name."""
    encap = "encap" if item.encap else "plain"
    parts = (MARK, item.local, item.local_id, item.own_subnet, item.remote, item.peer_subnet, encap, item.proposal)
    return ",".join(parts)


def connection_of(name: str) -> IkeConnection | None:
    """The connection that has this name; None: it is not ours."""
    match name.split(","):
        case [mark, local, local_id, own, remote, theirs, ("encap" | "plain") as encap, proposal] if mark == MARK:
            return IkeConnection(local, local_id, own, remote, theirs, encap == "encap", proposal)
    return None


def _selector(item: XfrmPolicy) -> str:
    ends = f"src {address(item.src)}/{item.src_length} dst {address(item.dst)}/{item.dst_length}"
    return f"{ends} dir {DIRECTIONS[item.direction]}"


_UNITS: Final = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
_SIZES: Final = ("KiB", "MiB", "GiB", "TiB")


def _base64(value: bytes) -> str:
    """A public key in base64."""
    return b64encode(value).decode()


def wireguard_device(item: WireguardDevice, names: DeviceNames) -> str:
    """`flannel-wg listen-port 51820 private-key (hidden)`, and the public key that belongs to it."""
    mark = f" fwmark {item.fwmark:#x}" if item.fwmark else ""
    name = _device(item.ifindex, names)
    return (
        f"{name} listen-port {item.port} private-key {item.private_key}{mark} public-key {_base64(item.public_key)}"
    )


def wireguard_device_command(verb: Verb, item: WireguardDevice, names: DeviceNames) -> str:
    """`wg set ...`; what deletes it deletes the device."""
    if verb == "del":
        return f"ip link del {_device(item.ifindex, names)}"
    return f"wg set {wireguard_device(item, names).rpartition(' public-key ')[0]}"


def wireguard_peer(item: WireguardPeer, names: DeviceNames) -> str:
    """`flannel-wg peer KEY endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24`."""
    words = [f"{_device(item.ifindex, names)} peer {_base64(item.public_key)}"]
    if item.preshared_key:
        words.append(f"preshared-key {item.preshared_key}")
    if item.endpoint:
        words.append(f"endpoint {endpoint(item.endpoint, item.port)}")
    if item.keepalive:
        words.append(f"persistent-keepalive {item.keepalive}")
    return " ".join([*words, f"allowed-ips {_networks(item.allowed_ips)}"])


def wireguard_peer_command(verb: Verb, item: WireguardPeer, names: DeviceNames) -> str:
    """Prints the command `wg set ...` that makes, changes or removes the peer."""
    if verb == "del":
        return f"wg set {_device(item.ifindex, names)} peer {_base64(item.public_key)} remove"
    return f"wg set {wireguard_peer(item, names)}"


def endpoint(packed: bytes, port: int) -> str:
    """Prints an endpoint, such as `10.99.0.12:51820` or `[fd00:99::12]:51820`."""
    return f"{address(packed)}:{port}" if len(packed) == 4 else f"[{address(packed)}]:{port}"


def handshake(moment: float) -> str:
    """`latest handshake: 1 minute, 2 seconds ago`, of Unix time; 0: never."""
    if not moment:
        return "latest handshake: none"
    left = int(max(time.time() - moment, 0))
    parts = []
    for unit, seconds in _UNITS.items():
        number, left = divmod(left, seconds)
        parts += [f"{number} {unit}{'' if number == 1 else 's'}"] if number else []
    return f"latest handshake: {', '.join(parts)} ago" if parts else "latest handshake: now"


def transfer(received: int, sent: int) -> str:
    """`transfer: 1.45 KiB received, 1.52 KiB sent`."""
    return f"transfer: {_size(received)} received, {_size(sent)} sent"


def _size(number: int) -> str:
    if number < 1024:
        return f"{number} B"
    power = min((number.bit_length() - 1) // 10, len(_SIZES))
    return f"{number / 1024**power:.2f} {_SIZES[power - 1]}"


def _networks(allowed: AllowedIps) -> str:
    return ",".join(f"{address(packed)}/{length}" for packed, length in allowed) or "(none)"
