"""Three etcd members that are one cluster, on loopback or each in a network namespace of its own, to cut off."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.etcd.server import EtcdServer
from tests.hosts.namespaces import NamespaceMaker

_CALM: Final = ("--heartbeat-interval=50", "--election-timeout=500")
"""Quick elections on a machine that is busy."""
_BRIDGE: Final = "etcd0"
_US: Final = "10.77.0.1"


@dataclass(frozen=True)
class EtcdCluster:
    """Its members; what is here treats one of them."""

    members: Sequence[EtcdServer]

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    @property
    def leader(self) -> EtcdServer:
        """The one that leads now; ask only while there is one."""
        return next(member for member in self.members if _leads(member))

    @property
    def follower(self) -> EtcdServer:
        """One that does not."""
        return next(member for member in self.members if not _leads(member))

    def others(self, member: EtcdServer) -> tuple[EtcdServer, ...]:
        return tuple(other for other in self.members if other is not member)

    def start(self) -> None:
        """Starts all of them, and waits until all serve."""
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait()

    def heal(self) -> None:
        """Whatever was done to them: all of them run, and serve."""
        for member in self.members:
            if member.process is None:
                member.launch()
            member.thaw()
        for member in self.members:
            member.wait()

    def discard(self) -> None:
        """Ends all of them."""
        for member in self.members:
            member.discard()

    def unplug(self, member: EtcdServer) -> None:
        """Nobody reaches it any more, nor it anybody; nobody is told."""
        _run("ip", "link", "set", f"to-{member.name}", "down")

    def plug_in(self, member: EtcdServer) -> None:
        """The end of unplug()."""
        _run("ip", "link", "set", f"to-{member.name}", "up")

    def isolate(self, member: EtcdServer) -> None:
        """It does not reach the other members any more; we still reach it."""
        for other in self.others(member):
            _inside(member, "route", "add", "blackhole", f"{other.host}/32")

    def reunite(self, member: EtcdServer) -> None:
        """The end of isolate()."""
        for other in self.others(member):
            _inside(member, "route", "delete", "blackhole", f"{other.host}/32")


@contextmanager
def cluster_on_loopback(directory: Path, *arguments: str) -> Iterator[EtcdCluster]:
    """Three members, serving."""
    members = [EtcdServer(directory / name, (*_CALM, *arguments), name=name) for name in ("one", "two", "three")]
    with _running(members) as cluster:
        yield cluster


@contextmanager
def cluster_in_namespaces(directory: Path, *arguments: str) -> Iterator[EtcdCluster]:
    """The same, behind a bridge; needs the rights to make namespaces."""
    with ExitStack() as stack:
        maker = NamespaceMaker()
        stack.callback(maker.close)
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        stack.callback(_run, "ip", "link", "delete", _BRIDGE)
        _run("ip", "address", "add", f"{_US}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        members = []
        for number, name in enumerate(("one", "two", "three"), 11):
            host, namespace = f"10.77.0.{number}", maker(f"etcd-{name}")
            link = f"to-{name}"
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace.name)
            _run("ip", "link", "set", link, "master", _BRIDGE, "up")
            namespace.ip("address", "add", f"{host}/24", "dev", "eth0")
            namespace.ip("link", "set", "eth0", "up")
            members.append(
                EtcdServer(
                    directory / name,
                    (*_CALM, *arguments),
                    port=2379,
                    peer_port=2380,
                    name=name,
                    host=host,
                    namespace=namespace,
                )
            )
        yield stack.enter_context(_running(members))


@contextmanager
def _running(members: Sequence[EtcdServer]) -> Iterator[EtcdCluster]:
    for member in members:
        member.directory.mkdir()
        member.cluster = ",".join(f"{each.name}={each.peer}" for each in members)
    cluster = EtcdCluster(members)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.discard()


def _leads(member: EtcdServer) -> bool:
    """Whether it says so itself; one that is frozen or down does not."""
    if member.process is None:
        return False
    with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
        fields = member.etcdctl("endpoint", "status", "--write-out=fields", "--command-timeout=1s")
        return _field(fields, "MemberID") == _field(fields, "Leader")
    return False


def _field(fields: str, name: str) -> str:
    return fields.partition(f'"{name}" :')[2].split()[0]


def _inside(member: EtcdServer, *arguments: str) -> None:
    assert member.namespace is not None
    member.namespace.ip(*arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
