"""An EC2 over HTTP: moto, a real program, and the metadata service of an instance, which moto has in part only."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from lab.vpc.ec2 import Ec2
from lab.vpc.metadata import metadata as played_metadata
from lab.vpc.metadata import serving
from tests.clouds.process import cloud_python
from tests.patience import PATIENCE

SECRET: Final = "wJalrSEEDEDsecretKEYofTheRole"  # noqa: S105
KEY_ID: Final = "AKIASEEDEDKEYID00000"
__all__ = ["KEY_ID", "SECRET", "Ec2", "Vpc", "environment", "make_vpc", "metadata", "moto", "serving"]


@dataclass(frozen=True, slots=True)
class Vpc:
    """A VPC of one test with two subnets, of which the second has a table of its own."""

    ec2: Ec2
    name: str
    subnets: tuple[str, str]
    tables: tuple[str, str]
    """The main one, and that of the second subnet."""

    def instance(self, address: str, subnet: int = 0) -> str:
        """A network interface with this address; its name."""
        made = {"SubnetId": self.subnets[subnet], "PrivateIpAddress": address}
        return self.ec2.text("CreateNetworkInterface", ".//networkInterfaceId", **made)

    def routes(self, table: int = 0) -> dict[str, str]:
        """Targets by destination, of the routes that somebody has created."""
        answer = self.ec2.call("DescribeRouteTables", **{"RouteTableId.1": self.tables[table]})
        return {
            item.findtext("destinationCidrBlock", ""): item.findtext("networkInterfaceId")
            or item.findtext("gatewayId")
            or ""
            for item in answer.findall(".//routeSet/item")
            if item.findtext("gatewayId") != "local"
        }

    def checks(self, interface: str) -> bool:
        """Whether the source/destination check is on."""
        found = self.ec2.text(
            "DescribeNetworkInterfaces", ".//sourceDestCheck", **{"NetworkInterfaceId.1": interface}
        )
        return found == "true"

    def route(self, destination: str, interface: str, table: int = 0) -> None:
        """Another program's route."""
        self.ec2.call(
            "CreateRoute",
            RouteTableId=self.tables[table],
            DestinationCidrBlock=destination,
            NetworkInterfaceId=interface,
        )


def make_vpc(ec2: Ec2) -> Vpc:
    """A VPC 10.99.0.0/16."""
    name = ec2.text("CreateVpc", ".//vpcId", CidrBlock="10.99.0.0/16")
    subnets = (
        ec2.text("CreateSubnet", ".//subnetId", VpcId=name, CidrBlock="10.99.0.0/24"),
        ec2.text("CreateSubnet", ".//subnetId", VpcId=name, CidrBlock="10.99.1.0/24"),
    )
    filters = {"Filter.1.Name": "vpc-id", "Filter.1.Value.1": name}
    main = ec2.text("DescribeRouteTables", ".//routeTableId", **filters)
    second = ec2.text("CreateRouteTable", ".//routeTableId", VpcId=name)
    ec2.call("AssociateRouteTable", RouteTableId=second, SubnetId=subnets[1])
    return Vpc(ec2, name, subnets, (main, second))


@contextmanager
def moto(directory: Path, seed: str = "") -> Iterator[Ec2]:
    """A moto server of its own; `seed` is Python that fills it before, faster than by calls."""
    log = directory / "moto.log"
    begin = (
        f"{seed}\n"
        "from moto.server import ThreadedMotoServer as S; import sys, threading; "
        "s = S(ip_address='127.0.0.1', port=0, verbose=False); s.start(); "
        "open(sys.argv[1] + '.new', 'w').write(str(s.get_host_and_port()[1])); "
        "import os; os.rename(sys.argv[1] + '.new', sys.argv[1]); threading.Event().wait()"
    )
    port = directory / "moto.port"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with log.open("ab") as out:
        process = subprocess.Popen([cloud_python(), "-c", begin, str(port)], env=plain, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + PATIENCE
        while not port.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        url = f"http://127.0.0.1:{port.read_text()}/"
        while True:
            try:
                urlopen(f"{url}moto-api/", timeout=PATIENCE).close()  # noqa: S310
                break
            except URLError:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
        yield Ec2(url)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def ec2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2]:
    """A moto server for the tests of a file."""
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def vpc(ec2: Ec2) -> Vpc:
    """A VPC of the test's own."""
    return make_vpc(ec2)


@contextmanager
def metadata(vpc: Vpc | None = None) -> Iterator[str]:
    """The URL of a metadata service whose role has seeded secrets, in that VPC."""
    with played_metadata(vpc.name if vpc else "", KEY_ID, SECRET) as url:
        yield url


def environment(ec2: Ec2, metadata_url: str, **more: str) -> Mapping[str, str]:
    """What the process is started with on such an instance."""
    return {"AWS_ENDPOINT_URL": ec2.url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata_url, **more}
