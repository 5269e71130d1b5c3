"""`python -m wiring.pod`: asks the host for an interface, sets the address it is given, and stays.

When the host has gone, or has another subnet, it asks again.
"""

import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NoReturn

from wiring.plug import SOCKET, ip, receive_assignment, send_namespace

_PAUSE_SECONDS: Final = 0.2


def main() -> NoReturn:
    """Until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        with suppress(OSError, subprocess.CalledProcessError), closing(_connect()) as host:
            _live(host)
        time.sleep(_PAUSE_SECONDS)


def _live(host: socket.socket) -> None:
    """With one interface, until its host has gone. OSError, CalledProcessError: there is none to be had."""
    if Path("/sys/class/net/eth0").exists():
        ip("link delete eth0")
    send_namespace(host, socket.gethostname())
    given = receive_assignment(host)
    if given is None:
        return
    ip(f"address add {given.address} dev eth0", "link set eth0 up", f"route add default via {given.gateway}")
    print(f"this pod is {given.address}, behind {given.gateway}", flush=True)
    host.recv(1)


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(SOCKET)
    except OSError:
        connection.close()
        raise
    return connection


if __name__ == "__main__":
    main()
