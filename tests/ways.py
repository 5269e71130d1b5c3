"""Traces the five ways of docs/architecture.md through running services: `python -m tests.ways [RELEASE] [--names]`.

A node runs in namespaces of its own, beside an etcd. Each event happens `TIMES` times; a way consists of functions of
services/ that were called each time, from the event to a second after its effect. What services do meanwhile for
other reasons is rarely done each time. A stop that the page names and that was not called is printed.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.etcd import started_etcd
from lab import private
from lab.netns import NetworkNamespace
from lab.programs import find_etcd
from tests.paths import ROOT
from tests.upgrade.releases import files_of

TIMES: Final = 3
_MARK: Final = "FLANNELETTE_WAYS"
_PATIENCE: Final = 60.0
_QUIET_SECONDS: Final = 2.0
"""Before an event: what the one before has caused is over."""
_AFTER_SECONDS: Final = 1.0
"""After an effect: it is logged and reported."""
_ROOT_KEY: Final = "/coreos.com/network"
_CONFIG: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
_UNDERLAYS: Final = {"eth0": "172.30.0", "eth1": "172.31.0"}
_CHAIN: Final = "ip flannelette postrtg"


class Stuck(Exception):
    """An effect did not come; the message has the last lines of the services."""


class Node:
    """A node with the three services, whose calls are recorded."""

    def __init__(self, directory: Path, packages: Path | None, endpoint: str, namespace: NetworkNamespace) -> None:
        self.directory = directory
        self.endpoint = endpoint
        self.namespace = namespace
        self._packages = packages
        self._number = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Starts the services, and ends them after the block."""
        home = self.directory
        shared = ("--node=n1", f"--socket-dir={home}")
        flags = {
            "lease": (f"--etcd-endpoints={self.endpoint}", "--store=etcd"),
            "dataplane": (f"--subnet-file={home}/subnet.env", f"--state-dir={home}/state"),
            "masq": (f"--state-dir={home}/state-masq", "--ip-masq", "--firewall=nftables"),
        }
        for name in ("state", "state-masq"):
            (home / name).mkdir(mode=0o700)
        with ExitStack() as stack:
            for name, words in flags.items():
                process = stack.enter_context(self._started(name, *shared, *words))
                stack.callback(process.wait)
                stack.callback(process.terminate)
            yield

    def _started(self, name: str, *flags: str) -> "subprocess.Popen[bytes]":
        package, environment = "flannelette.services", dict(os.environ)
        if self._packages is not None:  # until 0.2 the import name was `services`
            package = "services"
            environment["PYTHONPATH"] = f"{self._packages}:{self._packages / 'proto'}"
        program = (sys.executable, "-P", str(ROOT / "tests/traced.py"), str(self.directory / f"{name}.calls"))
        command = [*program, f"{package}.{name}.main", *flags]
        with (self.directory / f"{name}.log").open("wb") as log, ExitStack() as stack:
            if name != "lease":  # which reaches etcd on this loopback interface
                stack.enter_context(self.namespace.inside())
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def functions(self, event: Callable[[], object], effect: Callable[[], bool]) -> set[str]:
        """Returns the functions that are called from an event to a second after its effect."""
        time.sleep(_QUIET_SECONDS)
        began = time.monotonic_ns()
        event()
        self.wait_for(effect)
        time.sleep(_AFTER_SECONDS)
        ended = time.monotonic_ns()
        found = set()
        for path in self.directory.glob("*.calls"):
            for line in path.read_text().splitlines():
                at, _, name = line.partition(" ")
                if began <= int(at) <= ended:
                    found.add(name)
        return found

    def wait_for(self, effect: Callable[[], bool]) -> None:
        """Waits for an effect. Raises Stuck."""
        deadline = time.monotonic() + _PATIENCE
        while not effect():
            if time.monotonic() > deadline:
                logs = (path.read_text(errors="replace")[-1500:] for path in sorted(self.directory.glob("*.log")))
                raise Stuck("\n".join(logs))
            time.sleep(0.005)

    def etcdctl(self, *words: str) -> str:
        """Returns what etcdctl prints."""
        command = [find_etcd("etcdctl"), f"--endpoints={self.endpoint}", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def own_keys(self) -> list[str]:
        """Returns the keys of leases with an address of this node."""
        listed = self.etcdctl("get", "--prefix", f"{_ROOT_KEY}/subnets/").split("\n")
        pairs = zip(listed[::2], listed[1::2], strict=False)
        return [key for key, value in pairs if any(f'"{each}.2"' in value for each in _UNDERLAYS.values())]

    def put_peer(self) -> str:
        """Puts the lease of another node; returns its subnet."""
        self._number += 1
        subnet, octet = f"10.5.{200 + self._number}.0", f"{self._number:02x}"
        value = (
            f'{{"PublicIP":"172.30.0.{100 + self._number}","PublicIPv6":null,"BackendType":"vxlan",'
            f'"BackendData":{{"VNI":1,"VtepMAC":"02:00:00:00:00:{octet}"}}}}'
        )
        self.etcdctl("put", f"{_ROOT_KEY}/subnets/{subnet}-24", value)
        return subnet

    def prints(self, text: str, *command: str) -> bool:
        """Whether a command prints the text, on the node."""
        done = subprocess.run(self.namespace.command(*command), capture_output=True, text=True, check=False)
        return text in done.stdout


def traced(release: str = "") -> dict[str, set[str]]:
    """Returns the functions of each way, by its title in docs/architecture.md, of this tree or of a release."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        packages = files_of(release, directory, "services", "proto") if release else None
        endpoint, _ = stack.enter_context(started_etcd())
        namespace = NetworkNamespace("ways")
        namespace.create()
        stack.callback(namespace.delete)
        for name, network in _UNDERLAYS.items():
            namespace.ip("link", "add", name, "type", "veth", "peer", f"far-{name}")
            namespace.ip("link", "set", f"far-{name}", "up")
            namespace.ip("link", "set", name, "up")
            namespace.ip("address", "add", f"{network}.2/24", "dev", name)
        _set_default(namespace, "eth0")
        node = Node(directory, packages, endpoint, namespace)
        node.wait_for(lambda: _puts(node, f"{_ROOT_KEY}/config", _CONFIG))
        with node.running():
            node.wait_for(lambda: node.prints("flannel.1", "ip", "link") and bool(node.own_keys()))
            node.wait_for(lambda: node.prints("masquerade", "nft", "list", "chain", *_CHAIN.split()))
            return {title: set.intersection(*(way(node) for _ in range(TIMES))) for title, way in WAYS.items()}


def _puts(node: Node, key: str, value: str) -> bool:
    try:
        return "OK" in node.etcdctl("put", key, value)
    except subprocess.CalledProcessError:  # it does not answer yet
        return False


def _set_default(namespace: NetworkNamespace, device: str) -> None:
    namespace.ip("route", "replace", "default", "via", f"{_UNDERLAYS[device]}.1", "dev", device)


def _lease_change(node: Node) -> set[str]:
    subnet = f"10.5.{201 + node._number}.0"  # the next one
    return node.functions(node.put_peer, lambda: node.prints(f"{subnet}/24", "ip", "route"))


def _lost_route(node: Node) -> set[str]:
    route = f"10.5.{200 + node._number}.0/24"
    return node.functions(lambda: node.namespace.ip("route", "del", route), lambda: node.prints(route, "ip", "route"))


def _moved_default_route(node: Node) -> set[str]:
    device = "eth1" if node.prints("dev eth0", "ip", "route", "show", "default") else "eth0"
    address = f'"{_UNDERLAYS[device]}.2"'
    return node.functions(
        lambda: _set_default(node.namespace, device),
        lambda: any(address in node.etcdctl("get", key) for key in node.own_keys()),
    )


def _acquire(node: Node) -> set[str]:
    (key,) = node.own_keys()
    return node.functions(lambda: node.etcdctl("del", key), lambda: bool(node.own_keys()))


def _repair(node: Node) -> set[str]:
    return node.functions(
        lambda: node.namespace.run("nft", "flush", "chain", *_CHAIN.split()),
        lambda: node.prints("masquerade", "nft", "list", "chain", *_CHAIN.split()),
    )


WAYS: Final[Mapping[str, Callable[[Node], set[str]]]] = {
    "A lease change": _lease_change,
    "A lost route": _lost_route,
    "A moved default route": _moved_default_route,
    "An acquire": _acquire,
    "A repair of a firewall rule": _repair,
}


def stops() -> dict[str, list[str]]:
    """Returns the stops of each way as the page has them."""
    page = (ROOT / "docs/architecture.md").read_text()
    sections = re.findall(r"^##+ (.+)\n((?:(?!^##).*\n)*)", page, re.MULTILINE)
    found = {title: re.findall(r"^\| \d+ \| `(services/[^`]+)`", text, re.MULTILINE) for title, text in sections}
    return {title: names for title, names in found.items() if names}


def main() -> None:
    """Prints how many functions each way has, or with `--names` which, in namespaces of its own."""
    if not private.is_private(_MARK):
        private.restart(_MARK, [sys.executable, "-m", "tests.ways", *sys.argv[1:]])
    private.find_system_tools()
    release = next((word for word in sys.argv[1:] if not word.startswith("--")), "")
    for title, names in traced(release).items():
        print(f"{len(names):4} {title}")
        missing = [] if release else [name for name in stops()[title] if name not in names]
        print(*(f"     not called: {name}" for name in missing), sep="\n", end="\n" if missing else "")
        if "--names" in sys.argv:
            print(*(f"     {name}" for name in sorted(names)), sep="\n")


if __name__ == "__main__":
    main()
