"""A node that changes its MAC and public address 80 times a second, beside pings between two others.

Nothing of the others is touched in the kernel of a peer, and little of its own; its last value arrives in the end.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import TwoHosts, two_hosts
from tests.patience import PATIENCE
from tests.waiting import eventually

SECONDS = 6
A_SECOND = 80
SUBNET = "10.5.99.0/24"
MOST_CHANGES = 20
"""Ten changes at once, one in three seconds, and a few that are asked for at the same moment."""


def request_of(number: int) -> pb.AcquireLeaseRequest:
    part = pb.Subnet(cidr=SUBNET, public_address=f"10.99.1.{1 + number % 200}")
    part.vxlan.vni, part.vxlan.mac = 1, f"02:00:00:00:00:{1 + number % 200:02x}"
    return pb.AcquireLeaseRequest(node="n3", backend_type="vxlan", subnets=[part])


@asynccontextmanager
async def heard(namespace: NetworkNamespace) -> AsyncIterator[Counter[str]]:
    """Notifications of the kernel while the block runs, by node: routes, neighbours and forwarding entries."""
    told = Counter[str]()
    command = namespace.command("ip", "monitor", "route", "neigh")
    monitor = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)

    async def count() -> None:
        assert monitor.stdout is not None
        async for line in monitor.stdout:
            text = line.decode()
            told["n3" if "10.5.99." in text or "10.99.1." in text or "02:00:00:00:00" in text else "others"] += (
                "flannel" in text
            )

    task = asyncio.create_task(count())
    try:
        await asyncio.sleep(0.3)
        yield told
    finally:
        monitor.kill()
        await monitor.wait()
        await task


async def flap(hosts: TwoHosts, seconds: float) -> tuple[int, int]:
    """How often n3 has asked for another lease, and how often it got one."""
    begun, asked, got = time.monotonic(), 0, 0
    async with hosts.cluster.calls() as stub:

        async def ask(number: int) -> int:
            with suppress(grpc.aio.AioRpcError):
                await stub.AcquireLease(request_of(number), timeout=PATIENCE)
                return 1
            return 0

        calls = list[asyncio.Task[int]]()
        while (passed := time.monotonic() - begun) < seconds:
            calls.append(asyncio.create_task(ask(asked)))
            asked += 1
            await asyncio.sleep(max(0.0, asked / A_SECOND - passed))
        got = sum(await asyncio.gather(*calls))
    return asked, got


@pytest.mark.parametrize("families", ["ipv4", "dual"])
async def test_a_node_that_changes_its_mac_80_times_a_second_is_held_and_named_and_costs_the_others_no_packet(
    netns: NetworkNamespace, make_netns: NamespaceMaker, families: str
) -> None:
    with two_hosts(netns, make_netns, "vxlan", families) as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane("--iface=eth0") as running:
            await running.until()
            await hosts.cluster.quiet()
            with hosts.stream() as stream:
                async with stream, heard(netns) as told:
                    asked, got = await flap(hosts, SECONDS)
                    print(f"{asked} changes asked for, {got} made; notifications: {dict(told)}")
                    async with hosts.cluster.calls() as stub:
                        status = await stub.GetStatus(pb.GetStatusRequest())
                        error, asked = await until_refused(stub, asked)
                        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                        assert "node n3 changes its MAC or public address too often" in str(error.details())
                        last = f"02:00:00:00:00:{1 + asked % 200:02x}"
                        await eventually(lambda: ask_again(hosts, asked))
                    await eventually(hosts.objects, lambda lines: any(last in line for line in lines))
            assert asked > SECONDS * A_SECOND / 2
            assert told["others"] == 0
            assert told["n3"] <= 3 * MOST_CHANGES
            assert stream.sent > 100
            assert not stream.lost
            (found,) = [each for each in status.conditions if each.code == "lease.flapping"]
            assert "node n3 changes" in found.problem
            assert found.cure


async def until_refused(stub: Any, number: int) -> tuple[grpc.aio.AioRpcError, int]:
    """The error of the first change that is not made, and its number: one may be due."""
    for each in range(number, number + 3):
        try:
            await stub.AcquireLease(request_of(each))
        except grpc.aio.AioRpcError as error:
            return error, each
    pytest.fail("three changes at once were made")


async def ask_again(hosts: TwoHosts, number: int) -> list[int]:
    """The number of the lease, if it was given now."""
    async with hosts.cluster.calls() as stub:
        with suppress(grpc.aio.AioRpcError):
            await stub.AcquireLease(request_of(number), timeout=PATIENCE)
            return [number]
    return []
