"""aws-vpc: the real process with boto3, against moto and a metadata service."""

import asyncio
import tarfile
from pathlib import Path

import pytest

from flannelette.services.runtime.state import unpack
from tests.clouds.aws import KEY_ID, SECRET, Vpc, environment, metadata
from tests.clouds.process import Leases, assert_no_secret, cloud_process
from tests.ctl.process import run

AWS = '{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}'


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
    assert unpack("cloud.routes", (tmp_path / "cloud-state" / "cloud.routes").read_bytes()).records
    assert_no_secret(tmp_path, SECRET, KEY_ID)


async def test_the_command_line_shows_and_writes_the_routes(vpc: Vpc, tmp_path: Path) -> None:
    leases = Leases(tmp_path, AWS.replace('"aws-vpc"', f'"aws-vpc","RouteTableID":["{vpc.tables[0]}"]'))
    with leases.service, metadata() as url:
        interface = vpc.instance("10.99.0.11")
        vpc.route("10.5.200.0/24", vpc.instance("10.99.0.99"))
        async with cloud_process(tmp_path, environment(vpc.ec2, url), "--cloud-interval=3600") as cloud:
            await cloud.until(lambda status: status.ready)
            status = await run(tmp_path, "cloud", "status")
            assert (status.code, "no lease has this subnet, and the route is not ours" in status.out) == (0, True)
            assert "(aws-vpc, 1 route)" in status.out
            assert (await run(tmp_path, "cloud", "diff")).code == 0
            cidr = await leases.join("n1", "10.99.0.11")
            await cloud.until(lambda status: any(r.node == "n1" and r.state == "active" for r in status.routes))
            vpc.ec2.call("DeleteRoute", RouteTableId=vpc.tables[0], DestinationCidrBlock=cidr)
            different = await run(tmp_path, "cloud", "diff")
            command = f"aws ec2 --region eu-central-1 create-route --route-table-id {vpc.tables[0]}"
            assert different.code == 1
            assert f"{command} --destination-cidr-block {cidr} --network-interface-id {interface}" in different.out
            assert cidr not in vpc.routes()
            assert (await run(tmp_path, "cloud", "sync")).code == 0
            assert vpc.routes()[cidr] == interface
            found = (await run(tmp_path, "-o", "json", "doctor")).json["problems"]
            assert [(each["symptom"], each["cause"]) for each in found if each["check"] == "cloud-route"] == [
                (
                    f"Table {vpc.tables[0]} has a route to 10.5.200.0/24 that no node needs.",
                    "no lease has this subnet, and the route is not ours",
                )
            ]
            assert f"create {cidr} via {interface}" in (await run(tmp_path, "events", "--service=cloud", cidr)).out
            assert f"create {cidr} via {interface}" in (await run(tmp_path, "events")).out
            dump = tmp_path / "dump.tar.gz"
            assert (await run(tmp_path, "sysdump", f"--write={dump}")).code == 0
            assert cidr in await asyncio.to_thread(_unpacked, dump)
            assert (await run(tmp_path, "cloud", "teardown", "--yes")).code == 0
            assert list(vpc.routes()) == ["10.5.200.0/24"], "that of somebody else stays"
            assert "paused" in (await run(tmp_path, "cloud", "status")).out


def _unpacked(dump: Path) -> str:
    """What the dump has of the cloud; none of its files has a key."""
    with tarfile.open(dump) as tar:
        files = {each.name.split("/")[-1]: tar.extractfile(each) for each in tar if each.isreg()}
        texts = {name: file.read().decode(errors="replace") for name, file in files.items() if file}
    assert {"plan-cloud.json", "events-cloud.json", "settings-cloud.json"} <= texts.keys()
    assert not [name for name, text in texts.items() if SECRET in text or KEY_ID in text]
    return texts["cloud.json"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            '"RouteTableID":"rtb-0123456789abcdef0"',
            "InvalidRouteTableID.NotFound: The routeTable ID 'rtb-0123456789abcdef0' does not exist: "
            "correct RouteTableID in the network configuration",
        ),
        ("", "set RouteTableID and AWS_REGION"),
    ],
)
async def test_what_is_missing_is_said_with_its_code_and_where_to_set_it(
    vpc: Vpc, tmp_path: Path, options: str, reason: str
) -> None:
    network = AWS.replace('"aws-vpc"', f'"aws-vpc",{options}') if options else AWS
    leases = Leases(tmp_path, network)
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
    region = {"AWS_REGION": "eu-central-1"} if options else {}
    with leases.service:
        nowhere = environment(vpc.ec2, "http://127.0.0.1:9", **keys, **region)
        async with cloud_process(tmp_path, nowhere) as cloud:
            status = await cloud.until(lambda status: reason in " ".join(status.reasons))
            assert not status.ready
    assert_no_secret(tmp_path, SECRET, KEY_ID)
