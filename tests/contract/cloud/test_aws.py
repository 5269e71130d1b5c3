"""aws-vpc: the real process with boto3, against moto and a metadata service."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clouds.aws import KEY_ID, SECRET, Ec2, Vpc, environment, make_vpc, metadata, moto
from tests.clouds.process import Leases, cloud_process

AWS = '{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}'


@pytest.fixture(scope="module")
def ec2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def vpc(ec2: Ec2) -> Vpc:
    return make_vpc(ec2)


async def test_each_node_has_a_route_in_the_table_of_each_subnet(vpc: Vpc, tmp_path: Path) -> None:
    leases = Leases(tmp_path, AWS)
    with leases.service, metadata(vpc) as url:
        first, second = vpc.instance("10.99.0.11"), vpc.instance("10.99.1.12", 1)
        one, two = await leases.join("n1", "10.99.0.11"), await leases.join("n2", "10.99.1.12")
        async with cloud_process(tmp_path, environment(vpc.ec2, url)) as cloud:
            await cloud.until_routes("n1", "n1", "n2", "n2")
            assert vpc.routes(0) == vpc.routes(1) == {one: first, two: second}
            assert not vpc.checks(first)
            assert not vpc.checks(second)
            third = vpc.instance("10.99.0.13")
            three = await leases.join("n3", "10.99.0.13")
            await cloud.until_routes("n1", "n1", "n2", "n2", "n3", "n3")
            await leases.leave("n1", one)
            moved = vpc.instance("10.99.0.22")
            assert await leases.join("n2", "10.99.0.22") == two
            await cloud.until_routes("n2", "n3")
            assert vpc.routes(0) == {two: moved, three: third}
            assert await cloud.end() == 0
        assert vpc.routes(0) == {two: moved, three: third}, "stopping leaves the routes"
    assert json.loads((tmp_path / "cloud-state" / "cloud.routes").read_text())
    assert_no_secret(tmp_path)


def assert_no_secret(directory: Path) -> None:
    """No log, state or event has a key."""
    told = "".join(path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file())
    assert SECRET not in told
    assert KEY_ID not in told
