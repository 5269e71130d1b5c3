"""A node that publishes another node's VTEP MAC in its own lease gets none of that node's packets.

Regression tests of hole 1.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.programs import find_etcd
from tests.e2e.lab_process import LabProcess, lab
from tests.patience import PATIENCE
from tests.waiting import contains, equals, eventually_sync

ENDPOINT = "http://10.99.0.1:2379"
WITNESSES = ("h2", "h3")
PINGS = """
import asyncio, sys
from ipaddress import ip_address
from lab.netns import NetworkNamespace
from lab.pings import Pinger
from lab.stream import Path, Stream

async def main(target, *pods):
    paths = [Path(pod, target, Pinger(NetworkNamespace(pod)), ip_address(target)) for pod in pods]
    async with Stream(paths) as stream:
        await asyncio.to_thread(sys.stdin.read)
    print(stream.sent, len(stream.lost))

asyncio.run(main(*sys.argv[1:]))
"""
"""100 pings a second from each pod to an address, until its input ends."""


class Lab:
    """Four hosts on an etcd, each with its own lease service."""

    def __init__(self, process: LabProcess) -> None:
        self.process = process
        hint = next(line for line in process.output.splitlines() if "nsenter" in line).split()
        self.inside = hint[: hint.index("ip")]
        rows = re.findall(r"^(h\d) +(\S+) +(\S+) +flannel\.1 +(\S+)", process.output, re.MULTILINE)
        self.addresses = {host: address for host, address, _, _ in rows}
        self.macs = {host: mac for host, _, _, mac in rows}
        self.keys = {host: "/coreos.com/network/subnets/" + cidr.replace("/", "-") for host, _, cidr, _ in rows}

    def command(self, namespace: str, *words: str) -> list[str]:
        return [*self.inside, "ip", "netns", "exec", namespace, *words]

    def run(self, namespace: str, *words: str) -> str:
        done = subprocess.run(
            self.command(namespace, *words), capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def etcdctl(self, *words: str) -> str:
        return self.run("outside", find_etcd("etcdctl"), f"--endpoints={ENDPOINT}", *words)

    def flannelette(self, host: str, *words: str) -> Any:
        command = [
            sys.executable,
            "-m",
            "flannelette.services.ctl.main",
            f"--socket-dir={self.process.directory}/{host}",
            *words,
        ]
        done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False, timeout=PATIENCE)
        return json.loads(done.stdout)

    def peer(self, host: str, node: str) -> dict[str, Any]:
        return next(peer for peer in self.flannelette(host, "peers")["peers"] if peer["node"] == node)

    def reason(self, host: str, node: str) -> str:
        """Why the peer is not carried, as the command line says it."""
        return str(self.peer(host, node).get("reason", ""))

    def pod_address(self, host: str) -> str:
        found = re.search(
            r"inet ([0-9.]+)", self.run(host.replace("h", "pod"), "ip", "-4", "address", "show", "eth0")
        )
        assert found
        return found[1]

    def created(self, host: str) -> int:
        return int(json.loads(self.etcdctl("get", self.keys[host], "-w", "json"))["kvs"][0]["create_revision"])

    @contextmanager
    def silenced(self, host: str) -> Iterator[None]:
        """The services of this host do nothing: a hostile one would not mend what it has done."""
        pids = [pid for pid, line in self.process.processes().items() if f"--node={host} " in line + " "]
        assert len(pids) == 3
        signal_all(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            signal_all(pids, signal.SIGCONT)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        subprocess.run(["kill", f"-{number.value}", str(pid)], check=True)


@pytest.fixture(scope="module")
def four() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="fl-") as home, lab(Path(home), "NODES=4", "STORE=etcd") as started:
        started.until_printed("Ctrl-C ends the lab")
        yield Lab(started)


@pytest.mark.parametrize(("attacker", "victim"), [("h1", "h4"), ("h4", "h1")])
def test_a_node_that_rewrites_its_key_with_anothers_mac_diverts_nothing(
    four: Lab, attacker: str, victim: str
) -> None:
    """Whichever of the two keys is the older one, and whichever address the lower one."""
    target = four.pod_address(victim)
    value = four.etcdctl("get", "--print-value-only", four.keys[attacker]).strip()
    monitors = [
        subprocess.Popen(four.command(host, "bridge", "monitor", "fdb"), stdout=subprocess.PIPE, text=True)
        for host in WITNESSES
    ]
    with four.silenced(attacker):
        pings = subprocess.Popen(
            [*four.inside, sys.executable, "-c", PINGS, target, *(host.replace("h", "pod") for host in WITNESSES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        four.etcdctl(
            "put", "--ignore-lease", four.keys[attacker], value.replace(*(four.macs[h] for h in (attacker, victim)))
        )
        try:
            for host in WITNESSES:
                eventually_sync(partial(four.reason, host, attacker), contains(four.macs[victim]))
                assert four.peer(host, victim)["state"] == "PROGRAMMED"
                reason = four.peer(host, attacker)["reason"]
                assert f"of node {victim}, which is older" in reason
                fdb = four.run(host, "bridge", "fdb", "show", "dev", "flannel.1")
                assert re.findall(rf"{four.macs[victim]} dst (\S+)", fdb) == [four.addresses[victim]]
            time.sleep(1)
        finally:
            sent, lost = map(int, pings.communicate(timeout=PATIENCE)[0].split())
    assert (sent > 200, lost) == (True, 0)
    for monitor in monitors:
        monitor.terminate()
        assert four.macs[victim] not in monitor.communicate(timeout=PATIENCE)[0], "nothing of the victim was touched"
    eventually_sync(
        lambda: [four.peer(host, attacker)["state"] for host in WITNESSES],
        equals(["PROGRAMMED"] * len(WITNESSES)),
    )
