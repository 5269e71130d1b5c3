"""A lease service that tells leases without end: refused with a reason, and the table in force stays.

Regression tests of hole 4.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from flannelette.lease.v1 import lease_pb2 as pb
from tests.faults.hostile_service import HostileLeases, lease_of
from tests.hosts.dataplane import Cluster
from tests.waiting import contains, eventually

HONEST: Final = [lease_of(number) for number in (2, 3, 4)]
MOST: Final = 1_000
CHUNK: Final = 250
DATA: Final = '"' + "x" * 6_000 + '"'


class Endless(HostileLeases):
    """Begins an honest snapshot, completes it, and begins another one that never ends."""

    told = 0

    async def WatchLeases(self, request: pb.WatchLeasesRequest, context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        self.streams += 1
        yield self.snapshot()
        yield pb.WatchLeasesResponse(reset=True).SerializeToString()
        while True:
            changes = [pb.Change(upserted=self._next()) for _ in range(CHUNK)]
            yield pb.WatchLeasesResponse(changes=changes).SerializeToString()
            await asyncio.sleep(0)

    def _next(self) -> pb.Lease:
        self.told += 1
        subnet = pb.Subnet(cidr="10.5.99.0/24", public_address="10.99.0.99", opaque_json=DATA)
        return pb.Lease(name=f"hostile-{self.told}", node=f"h{self.told}", subnets=[subnet], backend_type="vxlan")


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def own() -> pb.Lease:
    lease = lease_of(27, "n1")
    lease.subnets[0].public_address = "10.99.0.11"
    return lease


async def test_a_dataplane_takes_no_more_leases_than_it_may(cluster: Cluster) -> None:
    cluster.leases.kill()
    honest = HostileLeases(HONEST, own())
    async with cluster.dataplane(f"--max-leases={MOST}") as running:
        async with honest.served(cluster.directory):
            await running.until(peers=len(HONEST))
            before = resident_mib(running.process.pid)
        endless = Endless(HONEST, own())
        async with endless.served(cluster.directory):
            await eventually(
                lambda: (endless.streams, endless.told), lambda seen: seen[0] >= 5 and seen[1] >= 5 * MOST
            )
            status = await running.status()
            assert status.peers.programmed == len(HONEST)
            assert len(cluster.neighbours()) == len(HONEST)
            assert resident_mib(running.process.pid) < before + 60
            await eventually(lambda: running.log, contains(f"sends more than {MOST} leases"))
        async with honest.served(cluster.directory):
            await running.until(peers=len(HONEST))
            assert (await running.status()).peers.total == len(HONEST)
