"""Programs of this host that rules hand packets to, as /proc shows them: by a queue (NFQUEUE), or by a port."""

import struct
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final

from flannelette.services.core.family import Address

_NET: Final = Path("/proc/thread-self/net")
_SETTINGS: Final = Path("/proc/sys/net/ipv4/conf")
_QUEUES: Final = "nfnetlink_queue"
_SOCKETS: Final = {6: ("tcp6", "tcp"), 17: ("udp6", "udp")}
_LISTENS, _UNCONNECTED = "0A", "07"  # TCP_LISTEN, TCP_CLOSE, in hexadecimal digits
_STATES: Final = {6: _LISTENS, 17: _UNCONNECTED}


def has_program(first: int, count: int = 1) -> bool | None:
    """Whether one of these queues has a program; None: the kernel does not say.

    Packets for a queue without one are dropped, but where the rule lets them pass by it.
    """
    try:
        lines = (_NET / "netfilter" / _QUEUES).read_text().splitlines()
    except FileNotFoundError:  # nobody has asked for a queue yet
        return False if (_NET / "netfilter").is_dir() else None
    except OSError:
        return None
    return any(first <= int(line.split()[0]) < first + count for line in lines if line.strip())


def takes_loopback(interface: str) -> bool:
    """Whether packets that come by an interface may be for 127.0.0.0/8."""
    found = []
    for name in ("all", interface):
        with suppress(OSError):
            found.append((_SETTINGS / name / "route_localnet").read_text().strip())
    return "1" in found


def is_listening(protocol: int, port: int, address: Address | None = None) -> bool | None:
    """Whether a program has a socket for the port at this address of the host, or at any but the loopback's.

    None: the kernel does not say.
    """
    found = None
    for name in _SOCKETS.get(protocol, ())[: 1 if address is not None and address.version == 6 else 2]:
        try:
            lines = (_NET / name).read_text().splitlines()[1:]
        except OSError:
            continue  # there is no IPv6
        found = found or any(_is_for(line.split(), _STATES[protocol], port, address) for line in lines)
    return found


def _is_for(words: list[str], state: str, port: int, address: Address | None) -> bool:
    if len(words) < 4 or words[3] != state or not words[1].endswith(f":{port:04X}"):
        return False
    here = _bound(words[1].partition(":")[0])
    return here.is_unspecified or (here == address if address is not None else not here.is_loopback)


def _bound(digits: str) -> Address:
    """The address of a socket, which /proc writes as 32-bit numbers of this machine."""
    numbers = [int(digits[place : place + 8], 16) for place in range(0, len(digits), 8)]
    found = ip_address(struct.pack(f"={len(numbers)}I", *numbers))
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
