"""What the services say about themselves, over gRPC."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flannelette.cloud.v1 import cloud_pb2, cloud_pb2_grpc
from flannelette.dataplane.v1 import dataplane_pb2, dataplane_pb2_grpc
from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from flannelette.masq.v1 import masq_pb2, masq_pb2_grpc
from flannelette.services.runtime.rpc.transport import PLAIN, ServerChannel
from lab.options import PICTURES

_RETRY = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),  # also the time a connection may take
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),  # else the back-off of an older channel to the same socket is inherited
)
_PATIENCE: Final = 60.0
_CALLS: Final = 20
_MUCH: Final = (1 << 20) - 1024
"""Bytes; our servers take messages of 1 MiB."""
_SOON: Final = 5.0
"""Seconds for an answer, of which one that is missing is an answer, too."""


async def until_serving(address: str) -> None:
    """Returns when the service there is ready, also if there is none yet."""
    async with _listening(address) as channel:
        while True:
            with suppress(grpc.aio.AioRpcError):
                watch = health_pb2_grpc.HealthStub(channel).Watch(
                    health_pb2.HealthCheckRequest(), wait_for_ready=True
                )
                async for response in watch:
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            await asyncio.sleep(0.02)  # it ended in the middle; its successor is on its way


async def until_programmed(address: str, peers: int) -> dataplane_pb2.Status:
    """Returns the status of the dataplane there as soon as it is ready and has programmed that many peers."""
    async with _listening(address) as channel:
        while True:
            with suppress(grpc.aio.AioRpcError):
                stub = dataplane_pb2_grpc.DataplaneServiceStub(channel)
                request = dataplane_pb2.WatchStatusRequest()
                async for response in stub.WatchStatus(request, wait_for_ready=True):
                    if response.status.ready and response.status.peers.programmed == peers:
                        return response.status
            await asyncio.sleep(0.02)  # as above


async def dataplane(address: str, *, patience: float = _PATIENCE) -> dataplane_pb2.Status:
    """What the dataplane there says now, however slow the machine is."""
    async with _channel(address) as channel:
        ask = dataplane_pb2_grpc.DataplaneServiceStub(channel).GetStatus
        request = dataplane_pb2.GetStatusRequest()
        return (await ask(request, wait_for_ready=True, timeout=patience)).status


async def sizes(address: str, nodes: Collection[str]) -> list[tuple[int, int]]:
    """Returns the bytes that the routes to these peers say that their paths carry, or 0, and those that they may."""
    async with _channel(address) as channel:
        ask = dataplane_pb2_grpc.DataplaneServiceStub(channel).ListPeers
        answer = await ask(dataplane_pb2.ListPeersRequest(), wait_for_ready=True, timeout=_PATIENCE)
    overlay = dataplane_pb2.PROBE_LAYER_OVERLAY
    probes = [probe for peer in answer.peers if peer.node in nodes for probe in peer.probes if probe.layer == overlay]
    return [(probe.route_mtu, probe.mtu) for probe in probes]


async def masq(address: str, *, patience: float = _PATIENCE) -> masq_pb2.Status:
    """What masq there says now, however slow the machine is."""
    async with _channel(address) as channel:
        ask = masq_pb2_grpc.MasqServiceStub(channel).GetStatus
        request = masq_pb2.GetStatusRequest()
        return (await ask(request, wait_for_ready=True, timeout=patience)).status


async def refused(address: str) -> list[str]:
    """The keys of the store that the lease service there refuses now."""
    async with _channel(address) as channel:
        ask = lease_pb2_grpc.LeaseServiceStub(channel).ListQuarantine
        answer = await ask(lease_pb2.ListQuarantineRequest(), wait_for_ready=True, timeout=_PATIENCE)
        return [each.key for each in answer.keys]


async def call_with_much(address: str, said: list[str]) -> None:
    """Sends large calls to the service there, which asks for memory; `said` gets why one has no success, if so."""

    async def call() -> None:
        async with _channel(address) as channel:
            request = health_pb2.HealthCheckRequest(service="x" * _MUCH)
            try:
                await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_PATIENCE)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:  # there is no service of that name
                    said.append(error.code().name)

    await asyncio.gather(*(call() for _ in range(_CALLS)))


async def until_routed(address: str, nodes: Collection[str]) -> dict[str, str]:
    """Returns destinations by node, once the cloud has an active route for each of these and nothing else."""
    async with _channel(address) as channel:
        ask = cloud_pb2_grpc.CloudServiceStub(channel).GetStatus
        while True:
            answer = await ask(cloud_pb2.GetStatusRequest(), wait_for_ready=True, timeout=_PATIENCE)
            states = {(route.node, route.state, route.problem) for route in answer.routes}
            if answer.ready and states == {(node, "active", "") for node in nodes}:
                return {route.node: route.destination for route in answer.routes}
            await asyncio.sleep(0.1)


async def release_leases(address: str, node: str) -> None:
    """Releases the leases of a node, as an operator does when the node is gone for good."""
    async with _channel(address) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        found = await stub.ListLeases(lease_pb2.ListLeasesRequest(), wait_for_ready=True, timeout=_PATIENCE)
        for lease in found.leases:
            if lease.node == node:
                await stub.ReleaseLease(lease_pb2.ReleaseLeaseRequest(node=node, name=lease.name), timeout=_PATIENCE)


async def cloud_status(address: str) -> str:
    """What `flannelette cloud status` prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flannelette.services.ctl.main", "cloud", "status", f"--address={address}"),
        stdout=asyncio.subprocess.PIPE,
        env={name: text for name, text in os.environ.items() if not name.startswith("FLANNELETTE_")},
    )
    printed, _ = await process.communicate()
    return printed.decode()


async def draw(contexts: Path, picture: Path) -> bool:
    """Has `flannelette topology` write the picture of all nodes; False: it could not, or something is not well."""
    words = ["--context", "lab", "topology", "-o", PICTURES[picture.suffix]]
    with picture.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flannelette.services.ctl.main", *words),
            stdout=file,
            env={**os.environ, "FLANNELETTE_CONTEXTS": str(contexts)},
        )
        return await process.wait() == 0


async def reasons(name: str, address: str) -> list[str]:
    """Why it is not ready, in its own words, as far as it can say so."""
    with suppress(grpc.aio.AioRpcError):
        match name:
            case "dataplane":
                return list((await dataplane(address, patience=_SOON)).reasons)
            case "masq":
                return list((await masq(address, patience=_SOON)).reasons)
            case _:
                return ["see its log"]
    return ["it does not answer"]


@asynccontextmanager
async def _listening(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """Once a process listens there.

    A channel to nobody tries again all the time: many of them take the processor from the services that start.
    """
    server = ServerChannel(address, "", PLAIN, _RETRY)
    try:
        await server.until_present()
        yield server.channel
    finally:
        await server.close()


@asynccontextmanager
async def _channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=_RETRY) as channel:
        yield channel
