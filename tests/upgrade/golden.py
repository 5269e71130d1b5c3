"""What a release leaves on three hosts when its services stop: recorded from a lab of it, and laid out in another."""

import asyncio
import json
import shutil
import sqlite3
import time
from base64 import b64decode
from contextlib import closing
from pathlib import Path
from typing import Final

import grpc.aio

from flannelette.dataplane.v1 import dataplane_pb2, dataplane_pb2_grpc
from lab import programs
from lab.cluster import Cluster
from lab.etcd import ask, encoded
from lab.topology import OUTSIDE, Host
from tests.paths import GOLDEN
from tests.patience import PATIENCE
from tests.upgrade.upgrade import Upgrade

RELEASES: Final = GOLDEN / "releases"
"""A folder for each release, with one for each store: the store, and the state of each host."""
_SETTLED: Final = 5.0
"""Seconds: a service writes its state a second after a change."""
_PREFIX: Final = "/coreos.com/network/"
_LEASE_SECONDS: Final = 86_400
_STATES: Final = ("dataplane.state", "masq.state")


async def record(upgrade: Upgrade, target: Path) -> None:
    """Writes what the services of the lab leave."""
    cluster = upgrade.cluster
    shutil.rmtree(target, ignore_errors=True)
    async with upgrade.running():
        await asyncio.sleep(_SETTLED)
        for host in cluster.hosts:
            place, home = target / host.name, cluster.directory / host.name
            place.mkdir(parents=True)
            for name in ("subnet.env", *(f"state/{each}" for each in _STATES)):
                shutil.copy(home / name, place)
            (place / "rules.txt").write_text(_rules(host))
        if cluster.etcd is not None:
            keys = await ask(OUTSIDE, programs.ETCD_ENDPOINT, "/v3/kv/range", _everything())
            (target / "etcd.json").write_text(json.dumps(_pairs(keys), indent=1) + "\n")
        for service in cluster.named("dataplane"):
            commands = await _commands(service.program.address)
            (target / service.program.host / "commands.txt").write_text("".join(f"{each}\n" for each in commands))
    if cluster.etcd is None:
        with closing(sqlite3.connect(_database(cluster))) as connection:
            marks = [
                f"PRAGMA {name}={connection.execute(f'PRAGMA {name}').fetchone()[0]};"
                for name in ("application_id", "user_version")
            ]
            (target / "leases.sql").write_text("".join(f"{line}\n" for line in [*marks, *connection.iterdump()]))


async def lay_out(cluster: Cluster, source: Path) -> None:
    """The hosts and the store are as these services left them. The lab is built and configured; none runs."""
    for host in cluster.hosts:
        place, home = source / host.name, cluster.directory / host.name
        (home / "state").mkdir(parents=True)
        shutil.copy(place / "subnet.env", home)
        for name in _STATES:
            shutil.copy(place / name, home / "state")
        host.namespace.run("sh", "-euc", (place / "commands.txt").read_text())
        host.namespace.run("sh", "-euc", f"iptables-restore --noflush <{place / 'rules.txt'}")
    if cluster.etcd is None:
        _database(cluster).parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(_database(cluster))) as connection:
            connection.executescript((source / "leases.sql").read_text())
            connection.execute("UPDATE lease SET expires_at = ?", [time.time() + _LEASE_SECONDS])
            connection.commit()
        return
    endpoint = programs.ETCD_ENDPOINT
    leases: dict[str, dict[str, str]] = {}
    for key, pair in json.loads((source / "etcd.json").read_text()).items():
        name = key.rpartition("/")[2]  # of a subnet: what is about one has one lease of etcd's
        if pair["expires"] and name not in leases:
            granted = await ask(OUTSIDE, endpoint, "/v3/lease/grant", {"TTL": _LEASE_SECONDS})
            leases[name] = {"lease": granted["ID"]}
        request = {"key": encoded(key), "value": encoded(pair["value"]), **leases.get(name, {})}
        await ask(OUTSIDE, endpoint, "/v3/kv/put", request)


def _database(cluster: Cluster) -> Path:
    return cluster.directory / "lease/leases.db"


def _rules(host: Host) -> str:
    """For iptables-restore, without what is the kernel's own."""
    lines = host.namespace.run("iptables-save").splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith(("*", ":FLANNEL", "-A", "COMMIT")))


async def _commands(address: str) -> list[str]:
    """Those that make what the dataplane there has in the kernel. It is gone afterwards."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = dataplane_pb2_grpc.DataplaneServiceStub(channel)
        await stub.TeardownKernel(dataplane_pb2.TeardownKernelRequest(), timeout=PATIENCE)
        plan = await stub.ResyncKernel(dataplane_pb2.ResyncKernelRequest(dry_run=True), timeout=PATIENCE)
        return list(plan.commands)


def _everything() -> dict[str, object]:
    return {"key": encoded(_PREFIX), "range_end": encoded(_PREFIX[:-1] + "0")}


def _pairs(answer: dict[str, object]) -> dict[str, object]:
    pairs = answer["kvs"]
    assert isinstance(pairs, list)
    return {
        b64decode(pair["key"]).decode(): {
            "value": b64decode(pair["value"]).decode(),
            "expires": pair.get("lease", "0") != "0",
        }
        for pair in pairs
        if not b64decode(pair["key"]).decode().startswith(f"{_PREFIX}sessions/")  # they end with their services
    }
