"""An EC2 over HTTP: moto, a real program, and the metadata service of an instance, which moto has in part only."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from tests.clouds.process import cloud_python
from tests.patience import PATIENCE

SECRET: Final = "wJalrSEEDEDsecretKEYofTheRole"  # noqa: S105
KEY_ID: Final = "AKIASEEDEDKEYID00000"
_TOKEN: Final = "a-token-of-the-metadata-service"  # noqa: S105
_NAMESPACE: Final = re.compile(r'\sxmlns="[^"]+"')


class Ec2:
    """The API of EC2 as a test calls it: unsigned, which moto takes."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, action: str, **parameters: str) -> ElementTree.Element:
        """The answer of one call."""
        body = urlencode({"Action": action, "Version": "2016-11-15", **parameters}).encode()
        credential = "AWS4-HMAC-SHA256 Credential=test/20260101/eu-central-1/ec2/aws4_request, SignedHeaders=host, "
        request = Request(self.url, body, {"Authorization": f"{credential}Signature=0"})  # noqa: S310
        with urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return ElementTree.fromstring(_NAMESPACE.sub("", answer.read().decode()))  # noqa: S314

    def text(self, action: str, path: str, **parameters: str) -> str:
        """One value of the answer."""
        found = self.call(action, **parameters).findtext(path)
        assert found is not None, (action, path)
        return found


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
def moto(directory: Path) -> Iterator[Ec2]:
    """A moto server of its own."""
    log = directory / "moto.log"
    begin = (
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


@contextmanager
def metadata(vpc: Vpc | None = None) -> Iterator[str]:
    """The URL of a metadata service of version 2, of an instance with a role, in that VPC."""
    values: dict[str, str] = {
        "/latest/meta-data/placement/region": "eu-central-1",
        "/latest/meta-data/mac": "06:00:00:00:00:01",
        "/latest/meta-data/network/interfaces/macs/06:00:00:00:00:01/vpc-id": vpc.name if vpc else "",
        "/latest/meta-data/iam/security-credentials/": "flannelette",
        "/latest/meta-data/iam/security-credentials/flannelette": json.dumps(
            {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "AccessKeyId": KEY_ID,
                "SecretAccessKey": SECRET,
                "Token": "seeded-session-token",
                "Expiration": "2100-01-01T00:00:00Z",
                "LastUpdated": "2026-01-01T00:00:00Z",
            }
        ),
    }

    class Answers(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            is_right = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
            self._answer(200 if is_right else 400, _TOKEN)

        def do_GET(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") != _TOKEN:
                self._answer(401, "no token")
            else:
                self._answer(200 if self.path in values else 404, values.get(self.path, ""))

        def _answer(self, code: int, text: str) -> None:
            self.send_response(code)
            if self.command == "PUT":
                self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "300")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    with serving(Answers) as url:
        yield url


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server on loopback with this handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(ec2: Ec2, metadata_url: str, **more: str) -> Mapping[str, str]:
    """What the process is started with on such an instance."""
    return {"AWS_ENDPOINT_URL": ec2.url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata_url, **more}
