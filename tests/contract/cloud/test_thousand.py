"""A thousand nodes with each provider: pages of answers, batches of changes, and nothing left to do afterwards."""

import math
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from tests.clouds import ali, gce, tencent
from tests.clouds.aws import KEY_ID, SECRET, moto
from tests.clouds.process import Provider
from tests.clouds.server import playing

NODES: Final = 1000
LEASES: Final = [
    (str(ip_network((int(ip_address("10.4.0.0")) + 64 * n, 26))), str(ip_address("10.99.0.10") + n))
    for n in range(NODES)
]
_SEED: Final = f"""
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from ipaddress import ip_address
ec2 = ec2_backends[DEFAULT_ACCOUNT_ID]["eu-central-1"]
vpc = ec2.create_vpc("10.99.0.0/16")
subnet = ec2.create_subnet(vpc.id, "10.99.0.0/20", availability_zone="eu-central-1a")
table = ec2.create_route_table(vpc.id)
for n, (cidr, address) in enumerate({LEASES!r}):
    interface = ec2.create_network_interface(subnet, address)
    interface.source_dest_check = False
    if n >= 10:
        ec2.create_route(table.id, cidr, interface_id=interface.id)
open("TABLE", "w").write(table.id)
"""


def test_ali(tmp_path: Path) -> None:
    with playing(ali.Account()) as account:
        account.quota, account.delay = 2 * NODES, 1
        for n, (_, address) in enumerate(LEASES):
            account.instance(f"i-{n}", address)
        provider = Provider("ali-vpc", tmp_path)
        try:
            found = provider.do(LEASES, account.url, rounds=3, limit=2 * NODES)
            assert (len(found["made"]), found["errors"], found["left"]) == (NODES, {}, [])
            assert account.table() == {cidr: f"i-{n}" for n, (cidr, _) in enumerate(LEASES)}
            assert account.calls["CreateRouteEntries"] == math.ceil(NODES / 30)
            found = provider.do(LEASES[:900], account.url, rounds=3, limit=2 * NODES)
            assert (account.calls["DeleteRouteEntries"], len(account.table()), found["left"]) == (4, 900, [])
        finally:
            provider.end()


def test_tencent(tmp_path: Path) -> None:
    with playing(tencent.Account()) as account:
        account.quota = 2 * NODES
        for _, address in LEASES:
            account.instance(address)
        provider = Provider("tencent-vpc", tmp_path)
        try:
            found = provider.do(LEASES, account.url, rounds=3, limit=2 * NODES)
            assert (len(found["made"]), found["errors"], found["left"]) == (NODES, {}, [])
            assert account.table() == dict(LEASES)
            assert account.calls["CreateRoutes"] == NODES / 50
            found = provider.do(LEASES[:900], account.url, rounds=3, limit=2 * NODES)
            assert (account.calls["DeleteRoutes"], len(account.table()), found["left"]) == (2, 900, [])
        finally:
            provider.end()


def test_gce_where_most_are_there(tmp_path: Path) -> None:
    """Each route is a call and an operation of its own at Google."""
    with gce.google() as project:
        project.page = 500
        for n, (cidr, address) in enumerate(LEASES):
            project.instance(f"vm{n}", address)
            if n >= 50:
                project.insert(f"r{n}", cidr, f"vm{n}")
        provider = Provider("gce", tmp_path, **gce.environment(project))
        try:
            found = provider.do(LEASES, endpoint=project.url, rounds=3, limit=2 * NODES)
            assert (len(found["made"]), found["errors"], found["left"]) == (50, {}, [])
            assert project.table() == {cidr: f"vm{n}" for n, (cidr, _) in enumerate(LEASES)}
            assert found["commands"][0].startswith("gcloud compute --project=demo routes create flannel-10-4-0-0-26 ")
        finally:
            provider.end()


def test_aws_where_most_are_there(tmp_path: Path) -> None:
    with moto(tmp_path, _SEED.replace("TABLE", f"{tmp_path}/table")) as ec2:
        keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-central-1"}
        provider = Provider("aws-vpc", tmp_path, AWS_ENDPOINT_URL=ec2.url, **keys)
        try:
            options = {"RouteTableID": (tmp_path / "table").read_text()}
            found = provider.do(LEASES, options=options, rounds=3, limit=2 * NODES)
            assert (len(found["made"]), found["errors"], found["left"]) == (10, {}, [])
        finally:
            provider.end()
