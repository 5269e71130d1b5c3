"""The router of the lab's VPC, as a process, beside an EC2 that the test plays."""

import asyncio
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from lab.vpc.places import EC2_PORT
from lab.vpc.router import in_kernel
from tests.hosts.dataplane import environment
from tests.hosts.namespaces import NamespaceMaker
from tests.waiting import equals, eventually


class Ec2(BaseHTTPRequestHandler):
    """Has one table with one route, to an interface whose address is 10.9.0.2."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(INTERFACES if b"DescribeNetworkInterfaces" in asked else TABLES)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Is not printed."""


INTERFACES = b"""<a><networkInterfaceSet><item><networkInterfaceId>eni-2</networkInterfaceId>
<privateIpAddress>10.9.0.2</privateIpAddress><sourceDestCheck>false</sourceDestCheck></item></networkInterfaceSet></a>"""
TABLES = b"""<a><routeTableSet><item><routeSet><item><destinationCidrBlock>10.5.2.0/24</destinationCidrBlock>
<networkInterfaceId>eni-2</networkInterfaceId></item></routeSet></item></routeTableSet></a>"""


async def test_what_the_table_has_lost_while_the_router_was_away_is_deleted(make_netns: NamespaceMaker) -> None:
    router, host = make_netns(), make_netns()
    make_netns.connect(router, "10.9.0.1/24", host, "10.9.0.2/24")
    router.ip("route", "add", "10.5.3.0/24", "via", "10.9.0.2", "proto", "99")
    router.ip("route", "add", "10.5.4.0/24", "via", "10.9.0.2", "proto", "static")
    with router.inside():
        server = HTTPServer(("127.0.0.1", EC2_PORT), Ec2)
    Thread(target=server.serve_forever, daemon=True).start()
    command = router.command(sys.executable, "-m", "lab.vpc.router", "rtb")
    process = await asyncio.create_subprocess_exec(*command, env=environment())

    def routes() -> dict[str, str]:
        with router.inside():
            return in_kernel()

    try:
        await eventually(routes, equals({"10.5.2.0/24": "10.9.0.2"}))
    finally:
        process.kill()
        await process.wait()
        server.shutdown()
        server.server_close()
    assert "10.5.4.0/24" in router.ip("route", "show", "proto", "static")
