"""`python -m lab.vpc.router TABLE`: the VPC's router, which has that table as routes of the kernel.

As in AWS, a network interface takes packets of pods only if its source/destination check is off.
"""

import json
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from lab.vpc.ec2 import Ec2
from lab.vpc.places import EC2_URL, ROUTER_PROTOCOL

_PAUSE: Final = 0.2
_OWN: Final = ("proto", ROUTER_PROTOCOL)


def routes(ec2: Ec2, table: str) -> dict[str, str]:
    """Gateways by destination, of the table's routes that lead to an interface."""
    gateways = {
        each.findtext("networkInterfaceId", ""): each.findtext("privateIpAddress", "")
        for each in ec2.call("DescribeNetworkInterfaces").findall("./networkInterfaceSet/item")
        if each.findtext("sourceDestCheck") == "false"
    }
    answer = ec2.call("DescribeRouteTables", **{"RouteTableId.1": table})
    return {
        each.findtext("destinationCidrBlock", ""): gateways[interface]
        for each in answer.findall(".//routeSet/item")
        if (interface := each.findtext("networkInterfaceId", "")) in gateways
    }


def in_kernel() -> dict[str, str]:
    """Gateways by destination, of the router's routes."""
    shown = subprocess.check_output(["ip", "-4", "-j", "route", "show", *_OWN])
    return {each["dst"]: each["gateway"] for each in json.loads(shown)}


def commands(there: dict[str, str], wanted: dict[str, str]) -> list[tuple[str, ...]]:
    """What `ip route` has to be told."""
    changed = [(each, gateway) for each, gateway in wanted.items() if there.get(each) != gateway]
    return [
        *(("replace", each, "via", gateway, *_OWN) for each, gateway in changed),
        *(("delete", each, *_OWN) for each in there.keys() - wanted.keys()),
    ]


def main() -> None:
    """Follows the table until it is killed."""
    for name in ("all", "default", "eth0"):  # a VPC's router sends none
        subprocess.run(["sysctl", "-qw", f"net.ipv4.conf.{name}.send_redirects=0"], check=False)
    subprocess.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
    ec2, there = Ec2(EC2_URL), in_kernel()
    while True:
        with suppress(OSError):  # moto is not there for a moment
            wanted = routes(ec2, sys.argv[1])
            for command in commands(there, wanted):
                subprocess.run(["ip", "route", *command], check=True)
            there = wanted
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
