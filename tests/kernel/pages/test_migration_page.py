"""docs/migration.md: its commands take a node from flannel to us and back, and no packet is lost."""

import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests import process_logs
from tests.flannel.turns import Node, node
from tests.hosts.dataplane import environment
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.pages.document import Section, is_as_shown, sections
from tests.paths import ROOT
from tests.patience import PATIENCE

THERE, BACK, *OTHERS = PAGE = sections(ROOT / "docs" / "migration.md")


class Target:
    """flannelette.target without systemd: the dataplane and masq; the lease service runs anyway."""

    def __init__(self, n1: Node) -> None:
        self._n1 = n1
        self._running: list[subprocess.Popen[bytes]] = []

    async def start(self) -> None:
        """Does not wait until they are ready."""
        for name in ("dataplane", "masq"):
            self._running.append(self._launch(name))

    async def stop(self) -> None:
        """SIGTERM."""
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        while self._running:
            assert self._running.pop().wait(PATIENCE) == 0

    def discard(self) -> None:
        """Whatever the test came to."""
        for process in self._running:
            process.kill()
            process.wait()

    def _launch(self, name: str) -> "subprocess.Popen[bytes]":
        directory = self._n1.cluster.directory
        flags = ["--node=n1", f"--socket-dir={directory}", "--ip-masq"]
        if name != "lease":
            flags.append(f"--state-dir={directory}/state")
        if name == "dataplane":
            flags.append(f"--subnet-file={directory}/subnet.env")
        command = self._n1.cluster.namespace.command(
            sys.executable, "-m", f"flannelette.services.{name}.main", *flags
        )
        return process_logs.started(command, directory / f"{name}.log", env=environment())


@contextmanager
def target_of(n1: Node) -> Iterator[Target]:
    with ExitStack() as stack:
        target = Target(n1)
        stack.callback(target.discard)
        yield target


WITH_NFT, WITHOUT = OTHERS


@pytest.mark.parametrize(
    ("way", "network"),
    [((THERE, BACK), "ipv4"), ((THERE, BACK, WITH_NFT), "nftables"), ((THERE, WITHOUT), "ipv4")],
    ids=[BACK.title, WITH_NFT.title, WITHOUT.title],
)
async def test_the_way_to_us_and_back_is_as_the_page_says(
    netns: NetworkNamespace, make_netns: NamespaceMaker, way: tuple[Section, ...], network: str
) -> None:
    async with node(netns, make_netns, "vxlan", network) as n1:
        with target_of(n1) as target, n1.hosts.stream() as stream:
            systemctl: dict[str, Callable[[], Awaitable[None]]] = {
                "stop flanneld": n1.flanneld.stop,
                "start flanneld": n1.start_flanneld,
                "start flannelette.target": target.start,
                "stop flannelette.target": target.stop,
            }
            await n1.start_flanneld()
            before = rules(n1)
            async with stream:
                for section in way:
                    for block in section.blocks:
                        printed = ""
                        if "teardown" in block.commands:  # of who forgot the hand-over
                            await target.stop()
                            await n1.start_flanneld()
                        for line in block.commands.splitlines():
                            program, _, rest = line.partition(" ")
                            if program == "systemctl":
                                await systemctl[rest]()
                            elif program == "nft":
                                n1.cluster.run(line)
                            else:
                                assert program == "flannelette"
                                ran = await n1.flannelette(*rest.split(), f"--socket-dir={n1.cluster.directory}")
                                assert ran.returncode == 0, ran.stdout + ran.stderr
                                printed += ran.stdout
                        if block.shown:
                            assert is_as_shown(printed, block.shown), printed
            assert (stream.sent > 50, stream.lost) == (True, [])
            assert await n1.objects() == n1.flannels
            assert rules(n1) == before


def rules(n1: Node) -> list[str]:
    """The firewall's, without their counts."""
    lines = n1.cluster.run("iptables-save").splitlines() + n1.cluster.run("nft list ruleset").splitlines()
    uncounted = (re.sub(r"counter packets \d+ bytes \d+", "counter", line.partition(" [")[0]) for line in lines)
    return [line for line in uncounted if not line.startswith("#")]
