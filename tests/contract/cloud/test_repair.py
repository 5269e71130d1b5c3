"""What somebody deletes or changes in the cloud is put back by the next comparison, which an event tells."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from flannelette.cloud.v1 import cloud_pb2 as pb
from tests.clouds import ali, aws, gce, tencent
from tests.clouds.process import CloudProcess, Leases, cloud_process
from tests.clouds.server import playing
from tests.waiting import eventually


@dataclass(frozen=True, slots=True)
class Cloud:
    """It has nodes 1 and 2."""

    table: Callable[[], Mapping[str, str]]
    """Next hops by destination."""
    delete: Callable[[str], object]
    """Somebody deletes the route to this destination."""
    divert: Callable[[str], object]
    """Somebody lets it lead elsewhere."""
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def _ali(_: Path) -> Iterator[Cloud]:
    with playing(ali.Account()) as account:
        for n in (1, 2):
            account.instance(f"i-{n}", f"10.99.0.1{n}")
        yield Cloud(account.table, account.delete, lambda cidr: account.divert(cidr, "i-other"), account.flags)


@contextmanager
def _tencent(_: Path) -> Iterator[Cloud]:
    with playing(tencent.Account()) as account:
        for n in (1, 2):
            account.instance(f"10.99.0.1{n}")
        yield Cloud(account.table, account.delete, lambda cidr: account.divert(cidr, "10.99.0.99"), account.flags)


@contextmanager
def _gce(_: Path) -> Iterator[Cloud]:
    with gce.google() as project:
        for n in (1, 2):
            project.instance(f"vm{n}", f"10.99.0.1{n}")

        def name(cidr: str) -> str:
            return next(name for name, route in project.routes.items() if route["destRange"] == cidr)

        yield Cloud(
            project.table,
            lambda cidr: project.routes.pop(name(cidr)),
            lambda cidr: project.insert(name(cidr), cidr, "vm1", mark=""),
            (f"--cloud-endpoint={project.url}",),
            gce.environment(project),
        )


@contextmanager
def _aws(directory: Path) -> Iterator[Cloud]:
    with aws.moto(directory) as ec2:
        vpc = aws.make_vpc(ec2)
        first, _ = (vpc.instance(f"10.99.0.1{n}") for n in (1, 2))
        where = {"RouteTableId": vpc.tables[0]}
        away = {**where, "NetworkInterfaceId": first}
        with aws.metadata(vpc) as url:
            yield Cloud(
                vpc.routes,
                lambda cidr: ec2.call("DeleteRoute", **where, DestinationCidrBlock=cidr),
                lambda cidr: ec2.call("ReplaceRoute", **away, DestinationCidrBlock=cidr),
                environment=aws.environment(ec2, url),
            )


CLOUDS: Final[Mapping[str, Callable[[Path], AbstractContextManager[Cloud]]]] = {
    "ali-vpc": _ali,
    "aws-vpc": _aws,
    "gce": _gce,
    "tencent-vpc": _tencent,
}


async def _told(cloud: CloudProcess) -> list[str]:
    """The changes of routes so far."""
    request = pb.WatchEventsRequest(no_follow=True, kinds=[pb.EVENT_KIND_ROUTE])
    return [each.what async for each in cloud.stub.WatchEvents(request)]


async def _until_told(cloud: CloudProcess, words: str, times: int) -> None:
    await eventually(lambda: _told(cloud), lambda seen: sum(what.startswith(words) for what in seen) >= times)


@pytest.mark.parametrize("backend", CLOUDS)
async def test_a_route_that_somebody_deletes_or_changes_is_put_back(backend: str, tmp_path: Path) -> None:
    leases = Leases(tmp_path, json.dumps({"Network": "10.5.0.0/16", "Backend": {"Type": backend}}))
    with CLOUDS[backend](tmp_path) as played, leases.service:
        one, two = [await leases.join(f"n{n}", f"10.99.0.1{n}") for n in (1, 2)]
        async with cloud_process(tmp_path, played.environment, *played.flags, "--cloud-interval=1") as cloud:
            await cloud.until_routes("n1", "n2")
            right = played.table()
            played.delete(one)
            await _until_told(cloud, f"create {one} via ", 2)
            assert played.table() == right
            played.divert(two)
            await _until_told(cloud, f"replace {two} via ", 1)
            assert played.table() == right
            status = await cloud.until_routes("n1", "n2")
            assert not status.findings
            changes = sorted(what.partition(" via ")[0] for what in await _told(cloud) if " via " in what)
    assert changes == sorted([f"create {one}", f"create {two}", f"create {one}", f"replace {two}"]), "and no other"
