"""Our notation is iproute2's: its commands do what we do, and it prints what we print."""

from collections.abc import Iterable

import pytest

from flannelette.services.core.family import FAMILIES, IPV4, IPV6, Family
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.objects import (
    RT_SCOPE_LINK,
    RT_SCOPE_UNIVERSE,
    RTPROT_BOOT,
    KernelObject,
    Neighbour,
    Plan,
    Route,
    Verb,
    steps,
)
from tests.hosts.netlink import DEVICES, PROTOCOL, Host, on_device, subnet_address

both = pytest.mark.parametrize("family", FAMILIES, ids=str)
NOTHING = frozenset[KernelObject]()


def varied(host: Host, family: Family) -> frozenset[KernelObject]:
    """Peers, and the other routes that backends make: through a gateway, to a device, to nowhere."""
    gateway = bytes((10, 99, 0, 9)) if family is IPV4 else bytes.fromhex("fd000099") + bytes(11) + b"\x09"
    length = 24 if family is IPV4 else 64
    scope = RT_SCOPE_LINK if family is IPV4 else RT_SCOPE_UNIVERSE
    return host.peers(family, 3) | {
        Route(subnet_address(family, 20), gateway, 20, family.af, length, host.underlay, PROTOCOL),
        Route(subnet_address(family, 21), b"", 21, family.af, length, host.underlay, PROTOCOL, scope),
        Route(subnet_address(family, 21), b"", 22, family.af, length, host.underlay, PROTOCOL),
        Route(subnet_address(family, 23), gateway, 23, family.af, family.bits, host.underlay, PROTOCOL, onlink=True),
        Route(bytes(family.bits // 8), gateway, 24, family.af, 0, host.underlay, PROTOCOL),
        Route(subnet_address(family, 25), b"", 25, family.af, length, 0 if family is IPV4 else 1, PROTOCOL, 0, 6),
    }


def run(host: Host, verb: Verb, objects: Iterable[KernelObject]) -> None:
    for each in objects:
        host.namespace.run(*command(verb, each, host.names).split())


@both
async def test_the_commands_of_a_plan_do_what_the_plan_does(vxlan_host: Host, family: Family) -> None:
    objects, device = varied(vxlan_host, family), vxlan_host.device(family)
    (_, puts), (_, deletes) = steps(Plan(objects, objects))
    with vxlan_host.kernel() as kernel:
        run(vxlan_host, "replace", puts)
        assert await on_device(kernel, family, device) == objects
        assert await kernel.apply(Plan(objects, NOTHING)) == {}
        assert await on_device(kernel, family, device) == objects
        run(vxlan_host, "del", deletes)
        assert await on_device(kernel, family, device) == NOTHING


@both
async def test_objects_are_shown_as_iproute2_shows_them(vxlan_host: Host, family: Family) -> None:
    objects = varied(vxlan_host, family)
    with vxlan_host.kernel() as kernel:
        assert await kernel.apply(Plan(objects, NOTHING)) == {}
    version, device = f"-{family.version}", DEVICES[family.version]
    shown = [
        line.strip()
        for line in vxlan_host.namespace.ip(version, "route", "show", "proto", str(PROTOCOL)).splitlines()
    ]
    # A selector that all routes have in common is not printed, and IPv6 routes have a preference.
    expected = {
        text(each, vxlan_host.names).replace(f" proto {PROTOCOL}", "") for each in objects if isinstance(each, Route)
    }
    assert {line.removesuffix(" pref medium") for line in shown} == expected
    neighbours = vxlan_host.namespace.ip(version, "neigh", "show", "nud", "permanent").splitlines()
    assert {line.strip() for line in neighbours} == {
        text(each, vxlan_host.names) for each in objects if isinstance(each, Neighbour)
    }
    entries = vxlan_host.namespace.run("bridge", "fdb", "show", "dev", device).splitlines()
    assert {f"{line.split()[0]} dev {device} {line.split(' ', 1)[1]}".strip() for line in entries} == {
        text(each, vxlan_host.names) for each in objects if not isinstance(each, Route | Neighbour)
    }


@pytest.mark.parametrize(
    "line",
    [
        "10.7.1.0/24 nexthop via 10.99.0.5 dev eth0 weight 1 nexthop via 10.99.0.6 dev eth0 weight 2",
        "10.7.2.0/24 via 10.99.0.5 dev eth0 proto static src 10.99.0.1 metric 7 mtu 1300 advmss 1200",
        "blackhole 10.7.3.0/24 proto bgp metric 9",
        "unreachable 10.7.4.0/24",
        "10.7.5.0/24 tos 0x04 via 10.99.0.5 dev eth0 onlink",
        "10.7.6.0/24 dev eth0 proto ospf scope link",
    ],
)
async def test_foreign_routes_are_shown_as_iproute2_shows_them(vxlan_host: Host, line: str) -> None:
    vxlan_host.namespace.ip("route", "add", *line.split())
    with vxlan_host.kernel() as kernel:
        (route,) = (each for each in await kernel.routes(uapi.AF_INET) if each.dst[:2] == bytes((10, 7)))
    shown = vxlan_host.namespace.ip("route", "show", "root", "10.7.0.0/16")
    assert text(route, vxlan_host.names) == " ".join(shown.split())


async def test_an_ipv6_route_of_metric_1024_is_the_one_that_ip_adds_without_a_metric(vxlan_host: Host) -> None:
    vxlan_host.namespace.ip("-6", "route", "add", "fd00:7::/64", "dev", "eth0")
    with vxlan_host.kernel() as kernel:
        (route,) = (each for each in await kernel.routes(IPV6.af) if each.dst[:4] == bytes.fromhex("fd000007"))
        assert route == Route(route.dst, b"", 1024, IPV6.af, 64, vxlan_host.underlay, RTPROT_BOOT)
        assert await kernel.apply(Plan(NOTHING, frozenset((route,)))) == {}
    assert vxlan_host.namespace.ip("-6", "route", "show", "fd00:7::/64") == ""
