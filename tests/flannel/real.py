"""A real flanneld for tests, and a cluster whose leases are in an etcd that it and our lease service share.

The program comes from `make tools` (lab/flanneld.sh), which needs a recent Go; without it these tests are skipped.
"""

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from tests import process_logs
from tests.etcd.server import EtcdServer
from tests.hosts.dataplane import Cluster
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess
from tests.tools import find_tool, lacking

_BRIDGES: Final = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def require_flanneld() -> str:
    """The program; without it, or where it would not start, the test is skipped (`lacking`)."""
    program = find_tool("flanneld")
    if not _BRIDGES.exists():
        lacking("flanneld starts only where the kernel has br_netfilter: modprobe br_netfilter")
    return program


class SharedStore(Cluster):
    """The leases are in an etcd on n1, under flannel's own prefix."""

    def start_leases(self) -> ServiceProcess:
        """Of n1 alone, as on a node."""
        if not hasattr(self, "etcd"):
            self.etcd = EtcdServer(self.directory, host="10.99.0.11")
            with self.namespace.inside():
                self.etcd.start()
                self.etcd.etcdctl("put", "/coreos.com/network/config", self.network_file.read_text())
        store = ("--store=etcd", f"--etcd-endpoints={self.etcd.endpoint}", "--node=n1")
        return ServiceProcess(self.directory, *store, namespace=self.namespace)

    def close(self) -> None:
        """Ends the etcd."""
        self.etcd.discard()

    async def lives_on(self, subnet: str) -> int:
        """The etcd lease that the key of a subnet hangs on."""
        found = await asyncio.to_thread(self._get, f"/coreos.com/network/subnets/{subnet}")
        (key,) = json.loads(found)["kvs"]
        return int(key["lease"])

    def _get(self, prefix: str) -> str:
        with self.namespace.inside():
            return self.etcd.etcdctl("get", "--prefix", prefix, "-w", "json")


class OnEtcd(Protocol):
    """Whose nodes have their leases in an etcd."""

    etcd: EtcdServer


class Flanneld:
    """One process on a host; its log grows over restarts."""

    def __init__(
        self, cluster: OnEtcd, host: NetworkNamespace, home: Path, *flags: str, around: Sequence[str] = ()
    ) -> None:
        self.home = home
        self.log_file = home / "flanneld.log"
        self._command = host.command(
            *around,
            "env",
            f"WIREGUARD_KEY_FILE={home}/wgkey",  # the hosts share /run
            require_flanneld(),
            f"--etcd-endpoints={cluster.etcd.endpoint}",
            "--iface=eth0",
            "--ip-masq",
            f"--subnet-file={home}/subnet.env",
            "--v=2",
            *flags,
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    async def start(self, until: str = "flannel is ready") -> None:
        """Returns when it has logged this, a regular expression."""
        before = self.log_file.stat().st_size if self.log_file.exists() else 0
        process = self._process = self._launch()
        deadline = time.monotonic() + PATIENCE
        while not re.search(until, self.log[before:]):
            assert process.poll() is None, f"flanneld ended by itself:\n{self.log[before:]}"
            assert time.monotonic() < deadline, f"flanneld does not say {until!r}:\n{self.log[before:]}"
            await asyncio.sleep(0.02)

    def _launch(self) -> "subprocess.Popen[bytes]":
        return process_logs.started(self._command, self.log_file)

    async def stop(self) -> None:
        """As its pod is ended: SIGTERM, then SIGKILL if it takes too long (v0.28.9 may hang while it shuts down)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 5)
            self.discard()

    def discard(self) -> None:
        """Kills it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
