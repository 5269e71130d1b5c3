"""Many light subscribers in one process, for the bench `fanout`: raw bytes, some hundred streams a connection.

`python -m bench.fanout_client ADDRESS STREAMS`. Prints a line when every stream has its first complete table. For
every line on its input, the name of a node, it prints a JSON list: when each stream was told of it, on
CLOCK_MONOTONIC; shorter if some were not told in time.
"""

import asyncio
import gc
import json
import sys
import time
from typing import Any, Final

import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.lease.watch import SYNCED

STREAMS_A_CHANNEL: Final = 125
_SECONDS: Final = 20.0
_WATCH: Final = "/flannelette.lease.v1.LeaseService/WatchLeases"


class Crowd:
    """The subscribers of this process."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._synced = 0
        self._told: dict[bytes, list[float]] = {}
        self._news = asyncio.Event()

    async def subscribe(self, channel: grpc.aio.Channel) -> None:
        """One subscriber, until the service ends the stream."""
        watch: Any = channel.unary_stream(
            _WATCH, request_serializer=pb.WatchLeasesRequest.SerializeToString, response_deserializer=None
        )
        is_synced = False
        async for message in watch(pb.WatchLeasesRequest(view=pb.VIEW_ALL), wait_for_ready=True):
            now = time.monotonic()
            if not is_synced:
                is_synced = SYNCED in message
                self._synced += is_synced
                self._news.set()
            for name, times in self._told.items():
                if name in message:
                    times.append(now)
                    if len(times) == self._streams:
                        self._news.set()

    async def until_synced(self) -> None:
        """Every subscriber has a complete table."""
        while self._synced < self._streams:
            await self._next()

    def expect(self, name: str) -> None:
        """Starts to note when each subscriber is told of this node."""
        self._told = {name.encode(): []}

    async def told(self) -> list[float]:
        """When, for each subscriber; those who were not told in time are missing."""
        (times,) = self._told.values()
        try:
            async with asyncio.timeout(_SECONDS):
                while len(times) < self._streams:
                    await self._next()
        except TimeoutError:
            pass
        return times

    async def _next(self) -> None:
        await self._news.wait()
        self._news.clear()


async def main(address: str, streams: int) -> None:
    crowd = Crowd(streams)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(-(-streams // STREAMS_A_CHANNEL))]
    async with asyncio.TaskGroup() as group:  # a stream that the service refuses ends the process
        tasks = [group.create_task(crowd.subscribe(channels[n // STREAMS_A_CHANNEL])) for n in range(streams)]
        await crowd.until_synced()
        gc.collect()
        gc.freeze()
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            crowd.expect(line.strip())
            print("expecting", flush=True)
            print(json.dumps(await crowd.told()), flush=True)
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
