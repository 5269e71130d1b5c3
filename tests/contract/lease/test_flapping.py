"""A key of etcd that changes 80 times a second, as a flanneld's may: what nodes hear of it, and whom it delays."""

import asyncio
import time
from pathlib import Path

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.lease.admission import AT_ONCE, SECONDS_A_CHANGE
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.values import Put, Transaction
from tests.flannel.network import NAMES, Network, lease_to_ask_for, value, watching
from tests.patience import PATIENCE
from tests.services.lease import next_step
from tests.waiting import eventually

SECONDS = 4
STEP = 1 / 80


async def flap(network: Network) -> str:
    """Writes the first node's key again and again; the last value's MAC."""
    client = EtcdClient(EtcdSettings((network.etcd.endpoint,), network.prefix), Timing(), "test")
    key, until, number = f"{network.prefix}/subnets/{NAMES[0]}".encode(), time.monotonic() + SECONDS, 100
    while time.monotonic() < until:
        number += 1
        text = value(1).replace("00:00:01", f"{number // 256:02x}:00:{number % 256:02x}")
        await client.transact(Transaction((), (Put(key, text.encode()),)))
        await asyncio.sleep(STEP)
    await client.close()
    print(f"{number - 100} writes")
    return f"{number // 256:02x}:00:{number % 256:02x}"


async def test_nodes_hear_little_of_a_key_that_changes_all_the_time_and_its_last_value_in_the_end(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network) as client:
        heard: list[str] = []

        async def listen() -> None:
            call = client.stub.WatchLeases(pb.WatchLeasesRequest())
            while True:
                step = await next_step(call)
                heard.extend(change.name for change in step.changes if not step.reset)

        task = asyncio.create_task(listen())
        flapping = asyncio.create_task(flap(network))
        longest, number = 0.0, 100
        while not flapping.done():
            begun = time.monotonic()
            number += 1
            await client.stub.AcquireLease(lease_to_ask_for(f"n{number}", f"172.16.0.{number}"), timeout=PATIENCE)
            longest = max(longest, time.monotonic() - begun)
            await asyncio.sleep(0.2)
        last = await flapping
        print(f"{heard.count(NAMES[0])} changes heard; the slowest of {number - 100} calls {longest:.3f} s")
        assert heard.count(NAMES[0]) <= AT_ONCE + SECONDS / SECONDS_A_CHANGE + 1
        (found,) = [
            each
            for each in (await client.stub.GetStatus(pb.GetStatusRequest())).conditions
            if each.code == "lease.flapping"
        ]
        assert f"node {NAMES[0]} changes its MAC or public address too often" in found.problem
        await eventually(lambda: str(client.table.leases[NAMES[0]]), lambda text: last in text)
        task.cancel()
        await asyncio.wait([task])
