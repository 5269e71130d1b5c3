"""What probes cost a dataplane of N peers in which nothing else happens; the peer is the same one without probes.

The addresses of all peers are this host's own, so that each probe is answered at once. `rate` is packets a second, by
default that of the service: what one packet costs shows with a higher one.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import grpc.aio

from bench.etcd import fill, running_etcd
from bench.host import empty_host
from bench.leases import NETWORK, UNDERLAY
from bench.node import Node, node_on
from bench.process import cpu_seconds
from bench.result import Bench, BenchFailed, Result
from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1 import dataplane_pb2_grpc

_SETTLE_SECONDS: Final = 8.0


async def _idle(node: Node, seconds: int, *flags: str) -> float:
    """CPU seconds of a dataplane that is left alone for so long."""
    node.running["dataplane"].kill()
    node.running["dataplane"].wait()
    node.start_dataplane("--audit-interval=3600", *flags)
    await node.until_ready()
    await asyncio.sleep(_SETTLE_SECONDS)
    dataplane = node.running["dataplane"]
    before = cpu_seconds(dataplane)
    await asyncio.sleep(seconds)
    return cpu_seconds(dataplane) - before


async def _measure(endpoint: str, seconds: int, rate: int) -> tuple[float, float]:
    with empty_host() as namespace, node_on(namespace, endpoint) as node:
        for network in (NETWORK, UNDERLAY):
            namespace.ip("route", "add", "local", str(network), "dev", "lo", "table", "local")
        node.start()
        await node.until_ready()
        without = await _idle(node, seconds, "--probe-rate=0")
        with_ = await _idle(node, seconds, f"--probe-rate={rate}")
        await _require_answers(node)
        return with_, without


async def _require_answers(node: Node) -> None:
    """Raises BenchFailed unless all peers that were probed have answered, datagrams too."""
    async with grpc.aio.insecure_channel(f"unix:{node.directory}/dataplane.sock") as channel:
        stub = dataplane_pb2_grpc.DataplaneServiceStub(channel)
        answer = await stub.ListPeers(pb.ListPeersRequest(), timeout=_SETTLE_SECONDS)
    overlay = [probe for peer in answer.peers for probe in peer.probes if probe.layer == pb.PROBE_LAYER_OVERLAY]
    well = sum(probe.checksum_offload == pb.CHECKSUM_OFFLOAD_WORKS for probe in overlay)
    if not overlay or well < len(overlay) - 2:  # two may be on their way
        raise BenchFailed(f"{well} of {len(overlay)} peers that were probed answered")


def _run(parameters: Mapping[str, int]) -> Result:
    peers, seconds, rate = (parameters[name] for name in ("peers", "seconds", "rate"))
    with running_etcd() as endpoint:
        asyncio.run(fill(endpoint, peers))
        with_, without = asyncio.run(_measure(endpoint, seconds, rate))
    return Result(
        name="probes",
        parameters=parameters,
        unit="percent of a core",
        ours=100 * with_ / seconds,
        peers={"without probes": 100 * without / seconds},
        less_is_better=True,
        cpu_seconds=with_,
        figures={
            "of_probes": 100 * (with_ - without) / seconds,
            "us_of_a_packet": 1e6 * (with_ - without) / (seconds * rate),
        },
    )


PROBES: Final = Bench(
    name="probes",
    summary="a dataplane of N peers that are probed, and nothing else happens",
    parameters={"peers": 1_000, "seconds": 60, "rate": 4},
    run=_run,
)
