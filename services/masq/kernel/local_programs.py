"""Programs of this host that rules hand packets to, as /proc shows them: by a queue (NFQUEUE), or by a port."""

from pathlib import Path
from typing import Final

_NET: Final = Path("/proc/thread-self/net")
_QUEUES: Final = "nfnetlink_queue"
_SOCKETS: Final = {6: ("tcp", "tcp6"), 17: ("udp", "udp6")}
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


def is_listening(protocol: int, port: int) -> bool | None:
    """Whether a program has a socket for the port, on any address; None: the kernel does not say."""
    found = None
    for name in _SOCKETS.get(protocol, ()):
        try:
            lines = (_NET / name).read_text().splitlines()[1:]
        except OSError:
            continue  # there is no IPv6
        found = found or any(_is_for(line.split(), _STATES[protocol], port) for line in lines)
    return found


def _is_for(words: list[str], state: str, port: int) -> bool:
    return len(words) > 3 and words[3] == state and words[1].endswith(f":{port:04X}")
