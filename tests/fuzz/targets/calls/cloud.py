"""The cloud service: what its calls take, and what hostile leases do to the routes of other nodes."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any, Final
from unittest.mock import patch

from flannelette.cloud.v1 import cloud_pb2
from flannelette.services.cloud import writer
from flannelette.services.cloud.main import CloudServicer
from flannelette.services.cloud.routes import DesiredRoute, Route, RouteTables, Table, Target, plan, wanted_routes
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Upserted
from flannelette.services.runtime.lease.wire import step_from_bytes
from tests.clouds.scene import AWS, Scene
from tests.fuzz.targets.calls.request import answers, request_in, run

_YOUNG: Final = 1000
"""See lease_events."""
_PART: Final = Subnet(ip_network("10.5.200.0/24"), ip_address("10.99.200.1"))
_GOOD: Final = Lease("10.5.200.0-24", "good", (_PART,), claim_order=1)
_WANTED: Final = DesiredRoute(_PART.cidr, "good", _PART.public_address)
_TABLE: Final = Table("rtb", (Route("rtb", _PART.cidr, "eni-good"),), 50)
_FOREIGN: Final = {"192.168.7.0/24": "igw-1", "10.5.77.0/24": "eni-77"}
"""Routes of others in the cloud's table, one of them in the network."""


async def _at_once(call: Callable[[], Any]) -> Any:
    """Without a thread."""
    return call()


def cloud_calls(data: bytes) -> None:
    """No call changes the routes that leases need, but the one that removes them; a comparison brings them back.

    Routes that are not ours stay with every call.
    """
    if request := request_in("cloud", data):
        run(_to_cloud(*request))


@cache
def _scene() -> Scene:
    scene = Scene()
    scene.join(1, 2)
    scene.cloud.routes.update(_FOREIGN)
    return scene


async def _to_cloud(method: str, request: Any) -> None:
    scene = _scene()
    servicer = CloudServicer(scene.writer, scene.journal, scene.health, asyncio.Event())
    with ExitStack() as stack:
        stack.enter_context(patch.object(writer, "in_thread", _at_once))
        if scene.cloud.routes == _FOREIGN:
            await scene.sync()
        there = dict(scene.cloud.routes)
        await answers(getattr(servicer, method), request)
        if method == "TeardownRoutes" and not request.dry_run:
            assert scene.cloud.routes == _FOREIGN
            assert scene.is_paused()
            await answers(servicer.SyncRoutes, cloud_pb2.SyncRoutesRequest())
    assert scene.cloud.routes == there
    assert not scene.is_paused()
    scene.cloud.calls.clear()
    scene.cloud.done.clear()


def cloud_leases(data: bytes) -> None:
    """The route of the node that was first stays, and none is written outside of the network."""
    try:
        step = step_from_bytes(data)
    except InvalidInput as error:
        str(error).encode()
        return
    leases = {each.lease.name: each.lease for each in step.changes if isinstance(each, Upserted)}
    if _GOOD.name in leases or any(each.node == _GOOD.node for each in leases.values()):
        return  # the object itself was taken
    wanted = wanted_routes(
        AWS, [_GOOD, *(replace(each, claim_order=each.claim_order + _YOUNG) for each in leases.values())]
    )
    assert [each for each in wanted if each.destination.overlaps(_WANTED.destination)] == [_WANTED]
    targets = {each.address: Target(f"eni-{each.address}") for each in wanted if each.address}
    assert _PART.public_address is not None
    made = plan(
        wanted, RouteTables([_TABLE], targets | {_PART.public_address: Target("eni-good")}), (), AWS.cidrs(IPV4)
    )
    for change in made.changes:
        change.text.encode()
        assert change.route.destination.subnet_of(ip_network("10.5.0.0/16"))  # type: ignore[arg-type]  # IPv4's
        assert change.route.destination != _PART.cidr
