"""What a pod and its host say to each other, over a SEQPACKET unix socket that stays open while the pod is there.

The pod sends its name with a descriptor of its network namespace. The answer is JSON: an Assignment.
"""

import json
import socket
import subprocess
from dataclasses import asdict, dataclass
from typing import Final

SOCKET: Final = "/run/pods/plug.sock"
_LONGEST: Final = 4096


@dataclass(frozen=True)
class Assignment:
    """What the pod has to make of the `eth0` that it got."""

    address: str
    """`10.5.30.2/24`."""
    gateway: str

    def send(self, connection: socket.socket) -> None:
        """Answers a pod."""
        connection.send(json.dumps(asdict(self)).encode())


def receive_assignment(connection: socket.socket) -> Assignment | None:
    """The host's answer; None: the host is gone."""
    message = connection.recv(_LONGEST)
    return Assignment(**json.loads(message)) if message else None


def send_namespace(connection: socket.socket, name: str) -> None:
    """Asks to be plugged in."""
    with open("/proc/self/ns/net", "rb") as namespace:  # noqa: PTH123 - its descriptor is the point
        socket.send_fds(connection, [name.encode()], [namespace.fileno()])


def receive_namespace(connection: socket.socket) -> tuple[str, int] | None:
    """The name and namespace of a pod, the latter a descriptor to close; None: it is gone."""
    message, descriptors, _flags, _address = socket.recv_fds(connection, _LONGEST, 1)
    return (message.decode(), descriptors[0]) if descriptors else None


def ip(*commands: str, keep: int | None = None) -> None:
    """Runs these commands of `ip` in turn, with the descriptor left open for them. CalledProcessError: one failed."""
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True, pass_fds=() if keep is None else (keep,))
