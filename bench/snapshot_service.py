"""A lease service that begins to read its etcd when it is told to, for the bench `snapshot`.

`python -m bench.snapshot_service DIRECTORY ENDPOINT`. It serves on `lease.sock` there. For a line on its input it
begins, and says on its standard error when that was, on CLOCK_MONOTONIC; for a second line its CPU time, and ends.
"""

import asyncio
import sys
import time
from functools import partial
from pathlib import Path

from bench.etcd import PREFIX
from flannelette.services.lease.admission import GuardSettings, StorePipeline
from flannelette.services.lease.service import SERVICE, Identity, LeaseService, add_to_server
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.process.process import Process
from flannelette.services.runtime.process.settings import ProcessSettings


async def main(directory: str, endpoint: str) -> None:
    broker = Broker("etcd", epoch="bench")
    store = EtcdStore(EtcdSettings((endpoint,), PREFIX), connected_nodes=broker.connected_nodes)
    process, gate = Process("lease"), StorePipeline(store, broker, GuardSettings())
    service = LeaseService(store, broker, gate, Identity(), process.health)
    process.servicers[SERVICE] = partial(add_to_server, service)

    async def follow() -> None:
        await asyncio.to_thread(sys.stdin.readline)
        cpu = time.process_time()
        print(time.monotonic(), file=sys.stderr, flush=True)
        reading = asyncio.create_task(gate.follow())
        await asyncio.to_thread(sys.stdin.readline)
        print(time.process_time() - cpu, file=sys.stderr, flush=True)
        reading.cancel()
        broker.stop()
        process.stopping.set()

    process.jobs["follow"] = follow
    await process.run(ProcessSettings(socket_dir=Path(directory)))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
