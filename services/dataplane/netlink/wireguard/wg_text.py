"""WireGuard devices and peers as `wg set` takes them, and the state of a peer as `wg show` prints it."""

import time
from base64 import b64encode
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from flannelette.services.dataplane.netlink.wireguard.values import AllowedIps, WireguardDevice, WireguardPeer

if TYPE_CHECKING:
    from flannelette.services.dataplane.netlink.objects import Verb

_UNITS: Final = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
_SIZES: Final = ("KiB", "MiB", "GiB", "TiB")


def key(value: bytes) -> str:
    """A public key in base64."""
    return b64encode(value).decode()


def device(item: WireguardDevice, names: Mapping[int, str]) -> str:
    """`flannel-wg listen-port 51820 private-key (hidden)`, and the public key that belongs to it."""
    mark = f" fwmark {item.fwmark:#x}" if item.fwmark else ""
    name = names.get(item.ifindex, f"if{item.ifindex}")
    return f"{name} listen-port {item.port} private-key {item.private_key}{mark} public-key {key(item.public_key)}"


def device_command(verb: "Verb", item: WireguardDevice, names: Mapping[int, str]) -> str:
    """`wg set ...`; what deletes it deletes the device."""
    if verb == "del":
        return f"ip link del {names.get(item.ifindex, f'if{item.ifindex}')}"
    return f"wg set {device(item, names).rpartition(' public-key ')[0]}"


def peer(item: WireguardPeer, names: Mapping[int, str]) -> str:
    """`flannel-wg peer KEY endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24`."""
    words = [f"{names.get(item.ifindex, f'if{item.ifindex}')} peer {key(item.public_key)}"]
    if item.preshared_key:
        words.append(f"preshared-key {item.preshared_key}")
    if item.endpoint:
        words.append(f"endpoint {endpoint(item.endpoint, item.port)}")
    if item.keepalive:
        words.append(f"persistent-keepalive {item.keepalive}")
    return " ".join([*words, f"allowed-ips {_networks(item.allowed_ips)}"])


def peer_command(verb: "Verb", item: WireguardPeer, names: Mapping[int, str]) -> str:
    """Prints the command `wg set ...` that makes, changes or removes the peer."""
    if verb == "del":
        return f"wg set {names.get(item.ifindex, f'if{item.ifindex}')} peer {key(item.public_key)} remove"
    return f"wg set {peer(item, names)}"


def endpoint(packed: bytes, port: int) -> str:
    """Prints an endpoint, such as `10.99.0.12:51820` or `[fd00:99::12]:51820`."""
    return f"{ip_address(packed)}:{port}" if len(packed) == 4 else f"[{ip_address(packed)}]:{port}"


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
    return ",".join(f"{ip_address(packed)}/{length}" for packed, length in allowed) or "(none)"
