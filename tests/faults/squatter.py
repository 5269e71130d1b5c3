"""A process without rights that takes the abstract names of our services, whichever is free, again and again.

It is what any user of a host, or a pod in the host's network, can be. Names with a line break forge lines of
/proc/net/unix, with the inodes of sockets that are somebody else's.
"""

import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE

NAMES: Final = (
    "flannelette-dataplane",
    "flannelette-masq",
    *(
        f"flannelette/{service}/{network}/{claim}"
        for service in ("dataplane", "masq")
        for network in ("default", "a", "zz")
        for claim in ("range/10.5.0.0/16", "range/0.0.0.0/0", "route protocol/77", "UDP port/8472 wireguard")
    ),
    "flannelette/dataplane/a/device/flannel.1 (VNI 7 and port 8472)",
)
WITHOUT_RIGHTS: Final = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
_COLUMNS: Final = "\n0000000000000000: 00000002 00000000 00000000 0002 01"
"""What a line of /proc/net/unix has before the inode."""
_KINDS: Final = (socket.SOCK_DGRAM, socket.SOCK_STREAM)


@contextmanager
def squatter(namespace: NetworkNamespace, held: int = len(NAMES)) -> Iterator[subprocess.Popen[str]]:
    """One that runs in the namespace until the block ends; begins when it holds that many of the names."""
    command = namespace.command(*WITHOUT_RIGHTS, sys.executable, "-m", "tests.faults.squatter")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        until = time.monotonic() + PATIENCE
        while int(process.stdout.readline() or len(NAMES)) < held and time.monotonic() < until:
            pass
        yield process
    finally:
        process.kill()
        process.communicate()


def _inodes() -> list[str]:
    lines = Path("/proc/net/unix").read_text(errors="replace").split("\n")
    return [words[6] for line in lines if len(words := line.split()) == 8 and "flannelette" in words[7]]


def _bound(name: str, kind: socket.SocketKind) -> socket.socket | None:
    found = socket.socket(socket.AF_UNIX, kind)
    with suppress(OSError):
        found.bind(f"\0{name}")
        return found
    found.close()
    return None


def _main() -> None:
    held: dict[str, socket.socket] = {}
    forged: dict[str, socket.socket] = {}
    said = -1
    for turn in itertools.count():
        for name in NAMES:
            if name not in held and (found := _bound(name, _KINDS["/" not in name])) is not None:
                held[name] = found
        if len(held) != said:
            said = len(held)
            print(said, flush=True)
        if turn % 100 == 0:
            for inode in set(_inodes()) - forged.keys():
                line = f"{_COLUMNS} {inode} @flannelette/dataplane/f/range/::/0"
                if (found := _bound(line, socket.SOCK_DGRAM)) is not None:
                    forged[inode] = found
        time.sleep(0.002)


if __name__ == "__main__":
    _main()
