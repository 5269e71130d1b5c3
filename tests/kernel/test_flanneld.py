"""`flannelette flanneld`: the three services in flanneld's place, on a host with an etcd."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.etcd import EtcdServer
from tests.kernel.masq_host import Host, entered
from tests.namespaces import NetworkNamespace
from tests.patience import PATIENCE

CONFIG: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
PORT: Final = 8471
SECONDS: Final = 30.0


class Flanneld:
    """The program in a directory of its own, and what it shows."""

    def __init__(self, host: Host, directory: Path, *flags: str, **environment: str) -> None:
        self.log = directory / "flanneld.log"
        self.subnet_file = directory / "subnet.env"
        command = (sys.executable, "-m", "services.ctl.main", "flanneld", "--node=n1", "--iface=eth0")
        places = (
            f"--socket-dir={directory}",
            f"--subnet-file={self.subnet_file}",
            f"--state-dir={directory}/state",
            f"--healthz-port={PORT}",
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *places, *flags],
                env=host.environment | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
                stdout=log,
                stderr=log,
            )

    def children(self) -> dict[str, int]:
        """Process ids by the name of the service."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = {}
        for child in path.read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            matched = next(
                (m for word in words if (m := re.fullmatch(r"services\.(\w+)\.main", word.decode()))), None
            )
            if matched:
                found[matched[1]] = int(child)
        return found

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def until_ready(self) -> None:
        self.until(lambda: self.ask("/readyz") == (200, "flanneld is ready"))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[Host]:
    netns.ip("link", "add", "eth0", "type", "veth", "peer", "far")
    for name in ("eth0", "far"):
        netns.ip("link", "set", name, "up")
    netns.ip("address", "add", "10.99.0.11/16", "dev", "eth0")
    with entered(netns, tmp_path) as it:
        it.use_legacy()
        yield it


@pytest.fixture
def etcd(host: Host, tmp_path: Path) -> Iterator[EtcdServer]:
    directory = tmp_path / "etcd"
    directory.mkdir()
    server = EtcdServer(directory, port=2379)
    try:
        server.start()
        server.etcdctl("put", "/coreos.com/network/config", CONFIG)
        yield server
    finally:
        server.discard()


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_flanneld_s_own_command_line_makes_a_node_of_the_overlay(
    host: Host, etcd: EtcdServer, tmp_path: Path
) -> None:
    """Without a word on etcd: its default endpoints are flanneld's."""
    flanneld = Flanneld(host, tmp_path, "-ip-masq")
    try:
        flanneld.until_ready()
        assert flanneld.ask("/healthz") == (200, "flanneld is running")
        subnet = re.search(r"FLANNEL_SUBNET=(\S+)\.1/24\n", flanneld.subnet_file.read_text())
        assert subnet is not None
        assert "FLANNEL_IPMASQ=true" in flanneld.subnet_file.read_text()
        assert f"subnets/{subnet[1]}.0-24" in etcd.etcdctl("get", "--prefix", "--keys-only", "/coreos.com/network")
        assert "flannel.1" in host.run("ip", "link", "show", "flannel.1")
        assert any("MASQUERADE" in rule for rule in host.rules("FLANNEL-POSTRTG"))
        children = flanneld.children()
        assert set(children) == {"lease", "dataplane", "masq"}
        assert flanneld.end() == 0
        assert not any(is_alive(pid) for pid in children.values())
        assert "flannel.1" in host.run("ip", "link", "show", "flannel.1"), "stopping leaves the kernel alone"
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_one_service_that_ends_ends_all_so_that_they_are_started_again_together(
    host: Host, etcd: EtcdServer, tmp_path: Path
) -> None:
    flanneld = Flanneld(host, tmp_path)
    try:
        flanneld.until_ready()
        children = flanneld.children()
        os.kill(children["dataplane"], signal.SIGKILL)
        assert flanneld.process.wait(SECONDS) == 1
        assert not any(is_alive(pid) for pid in children.values())
        assert "a service has ended" in flanneld.log.read_text()
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_no_service_outlives_a_flanneld_that_is_killed(host: Host, etcd: EtcdServer, tmp_path: Path) -> None:
    flanneld = Flanneld(host, tmp_path)
    flanneld.until_ready()
    children = flanneld.children()
    flanneld.end(signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while any(is_alive(pid) for pid in children.values()):
        assert time.monotonic() < deadline, "a service has outlived it"
        time.sleep(0.05)


def test_without_its_etcd_it_is_running_and_not_ready(host: Host, tmp_path: Path) -> None:
    flanneld = Flanneld(host, tmp_path)
    try:
        flanneld.until(lambda: flanneld.ask("/readyz") == (503, "flanneld is not ready yet"))
        assert flanneld.ask("/healthz") == (200, "flanneld is running")
        assert flanneld.end(signal.SIGINT) == 0
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_a_wrong_flag_is_one_line(host: Host, tmp_path: Path) -> None:
    flanneld = Flanneld(host, tmp_path, "--kube-subnet-manager")
    assert flanneld.process.wait(SECONDS) == 2
    said = "there is no flag --kube-subnet-manager: did you mean --kube-subnet-mgr? (--help lists them)"
    assert flanneld.log.read_text() == f"flanneld: {said}\n"
