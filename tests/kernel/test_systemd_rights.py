"""The users and capabilities of the systemd units are enough for the services, installed as docs/hosts.md says.

There is no systemd in a test's namespaces: `setpriv` gives what the units give.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.document import sections
from tests.etcd import EtcdServer
from tests.kernel.masq_host import Host, entered
from tests.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.unit.test_systemd_units import SERVICES, assignments

ROOT: Final = Path(__file__).parents[2]
CONFIG: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
SECONDS: Final = 40.0
PRIVATE: Final = r"""
mount -t tmpfs tmpfs "$1"
number=0
over() {
    number=$((number + 1))
    mkdir "$1/$number" "$1/$number.work"
    mount -t overlay -o "lowerdir=$2,upperdir=$1/$number,workdir=$1/$number.work" overlay "$2"
}
over "$1" /etc
rm -rf /etc/sysusers.d # which Debian does not have
for each in $2; do # so that the users reach Python and the sources, wherever they are
    over "$1" "$each"
    chmod o+x "$each"
done
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
echo made
exec sleep infinity
"""


class Machine:
    """A host with file systems of its own where the system's are, which nobody else sees."""

    def __init__(self, host: Host, directory: Path) -> None:
        python = Path(sys.executable)
        needed = {*python.parents, *python.resolve().parents, ROOT, *ROOT.parents}
        closed = sorted(str(path) for path in needed if not path.stat().st_mode & 0o001)
        (directory / "upper").mkdir()
        self.host, self.directory = host, directory
        self.holder = subprocess.Popen(
            [
                "unshare",
                "-m",
                "sh",
                "-euc",
                PRIVATE,
                "sh",
                str(directory / "upper"),
                " ".join(closed),
            ],
            stdout=subprocess.PIPE,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"made\n"

    def command(self, *command: str) -> tuple[str, ...]:
        return ("nsenter", f"--target={self.holder.pid}", "--mount", f"--wd={ROOT}", *command)

    def run(self, *command: str) -> str:
        done = subprocess.run(self.command(*command), capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def tries(self, *command: str) -> bool:
        done = subprocess.run(self.command(*command), capture_output=True, check=False, timeout=PATIENCE)
        return done.returncode == 0

    def start(self, service: str, *flags: str) -> "subprocess.Popen[bytes]":
        """As its unit does."""
        unit = assignments(service)
        bounding = "".join(f",+{name.removeprefix('CAP_').lower()}" for name in unit["CapabilityBoundingSet"].split())
        inherited = bounding if "AmbientCapabilities" in unit else ""
        rights = (
            f"--reuid={unit['User']}",
            f"--regid={unit['Group']}",
            "--clear-groups",
            f"--bounding-set=-all{bounding}",
            f"--inh-caps=-all{inherited}",
            f"--ambient-caps=-all{inherited}",
            "--no-new-privs",
        )
        for state in unit.get("StateDirectory", "").split():
            self.run("install", "-d", "-o", unit["User"], "-g", unit["Group"], "-m", "0700", f"/var/lib/{state}")
        variables = dict([unit["Environment"].split("=", 1)]) if "Environment" in unit else {}
        with (self.directory / f"{service}.log").open("ab") as log:
            return subprocess.Popen(
                self.command("setpriv", *rights, sys.executable, "-m", f"services.{service}.main", *flags),
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
                | variables,
                umask=int(unit["UMask"], 8),
                stdout=log,
                stderr=log,
            )


@pytest.fixture
def machine(netns: NetworkNamespace, tmp_path: Path) -> Iterator[Machine]:
    if "4294967295" not in Path("/proc/self/uid_map").read_text():
        pytest.skip("an ordinary user's namespace has no other users: run the tests as root")
    netns.ip("link", "add", "eth0", "type", "veth", "peer", "far")
    for name in ("eth0", "far"):
        netns.ip("link", "set", name, "up")
    netns.ip("address", "add", "10.99.0.11/16", "dev", "eth0")
    with entered(netns, tmp_path) as host:
        host.use_legacy()
        made = Machine(host, tmp_path)
        try:
            yield made
        finally:
            made.holder.kill()
            made.holder.wait()


@pytest.fixture
def etcd(machine: Machine, tmp_path: Path) -> Iterator[EtcdServer]:
    (tmp_path / "etcd").mkdir()
    server = EtcdServer(tmp_path / "etcd", port=2379)
    try:
        server.start()
        server.etcdctl("put", "/coreos.com/network/config", CONFIG)
        yield server
    finally:
        server.discard()


def test_the_units_users_and_capabilities_are_enough(machine: Machine, etcd: EtcdServer) -> None:
    install = next(part for part in sections(ROOT / "docs/hosts.md") if part.title == "Install")
    copy = next(block.commands for block in install.blocks if "systemd-sysusers" in block.words)
    machine.run("mkdir", "-p", "/etc/systemd/system")
    machine.run("sh", "-euc", copy)
    places = machine.run("stat", "--format=%A %U %G %n", "/run/flannelette", "/run/flannel", "/run/xtables.lock")
    assert places.splitlines() == [
        "drwxrwx--- root flannelette /run/flannelette",
        "drwxr-xr-x flannelette-dataplane flannelette /run/flannel",
        "-rw------- root root /run/xtables.lock",
    ]
    with ExitStack() as stack:
        for service, flag in zip(SERVICES, ("--store=etcd", "--iface=eth0", "--ip-masq"), strict=True):
            process = machine.start(service, "--node=n1", flag)
            stack.callback(process.wait)
            stack.callback(process.kill)
        deadline = time.monotonic() + SECONDS
        for service in SERVICES:
            while _why_not(machine, service):
                said = (machine.directory / f"{service}.log").read_text()
                assert time.monotonic() < deadline, f"{service}: {_why_not(machine, service)}\n{said}"
                time.sleep(0.1)
        assert "FLANNEL_SUBNET=10.5." in machine.run("cat", "/run/flannel/subnet.env")
        assert "flannel.1" in machine.host.run("ip", "link", "show", "flannel.1")
        assert any("MASQUERADE" in rule for rule in machine.host.rules("FLANNEL-POSTRTG"))
        for service, user in (("dataplane", "flannelette-dataplane"), ("masq", "root")):
            state = f"/var/lib/flannelette-{service}/{service}.state"
            while not machine.tries("test", "-f", state):  # a second after a change
                assert time.monotonic() < deadline, f"there is no {state}"
                time.sleep(0.1)
            assert machine.run("stat", "--format=%A %U", state) == f"-rw------- {user}\n"
        own = machine.run("stat", "--format=%A %U %G", "/run/flannelette/dataplane.sock")
        assert own == "srw-rw---- flannelette-dataplane flannelette\n"


def _why_not(machine: Machine, service: str) -> str:
    probe = machine.command(sys.executable, "-m", "services.runtime.probe", service)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        probe, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    ).stdout
