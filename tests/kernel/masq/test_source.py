"""`--ip-masq-source`: doctor says that answers to it are lost if and only if they are, and a restart changes it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.family import FAMILIES, IPV4, Family
from tests.ctl.process import run
from tests.hosts.four_hosts import IN, Lab, ports, source_seen
from tests.hosts.masq import Host, entered
from tests.hosts.namespaces import NamespaceMaker
from tests.kernel.masq.test_explain import HINTS
from tests.services.masq import acquire, lease_service, masq_on
from tests.waiting import eventually

SOURCES = {4: "192.0.2.64", 6: "2001:db8::40"}
SECOND = {4: "192.0.2.10", 6: "2001:db8::a"}
"""A second address of the host outside."""


@pytest.fixture
async def lab(make_netns: NamespaceMaker, tmp_path: Path) -> AsyncIterator[tuple[Lab, Host]]:
    lab = Lab(make_netns)
    for each in FAMILIES:
        lab.host.ip("route", "add", "default", "via", IN[each.version].outside)
        words = f"address add {SECOND[each.version]}/{24 if each is IPV4 else 64} dev uplink"
        lab.outside.ip(*words.split(), *["nodad"] * (each.version == 6))
    with entered(lab.host, tmp_path) as host:
        host.run("sysctl", "-q", "-w", "net.netfilter.nf_conntrack_udp_timeout=8")
        yield lab, host


def is_answered(lab: Lab, family: Family) -> bool:
    """Whether the host outside is heard by a pod that asks it under two addresses."""
    version, heard = family.version, []
    for address in (IN[version].outside, SECOND[version]):
        with lab.outside.inside():
            outside = socket.socket(family.af, socket.SOCK_DGRAM)
            outside.bind((address, next(ports)))
        with lab.pod.inside():
            pod = socket.socket(family.af, socket.SOCK_DGRAM)
        with outside, pod:
            outside.settimeout(5)
            pod.settimeout(1)
            pod.sendto(b"x", outside.getsockname()[:2])
            data, source = outside.recvfrom(16)
            assert source[0] == SOURCES[version]
            try:
                outside.sendto(data, source)
                heard.append(bool(pod.recv(16)))
            except OSError:
                heard.append(False)
    assert len({*heard}) == 1
    return heard[0]


def told(family: Family, status: pb.Status) -> list[bool]:
    """Whether it is broken, for each finding about the source of a family."""
    found = (each for each in status.findings if each.check == "ip-masq-source")
    return [each.broken for each in found if SOURCES[family.version] in each.problem]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_lost_answers_are_broken_if_and_only_if_they_are(family: Family, lab: tuple[Lab, Host]) -> None:
    (hosts, host), source = lab, SOURCES[family.version]
    word, length = ("-4", 32) if family is IPV4 else ("-6", 128)
    dual = ',"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48"'
    dual += ',"IPv6SubnetMin":"fd00:10:5:1b::","IPv6SubnetMax":"fd00:10:5:1b::"'
    with lease_service(host) as leases:
        config = host.lock.parent / "net-conf.json"
        config.write_text(config.read_text().replace('0/16"', '0/16"' + dual, 1))
        arguments = ("--ip-masq", "--ip-masq-source=" + ",".join(SOURCES.values()), "--firewall=nftables")
        async with masq_on(host, *arguments) as masq:
            await acquire(leases, "2001:db8::1")
            assert told(family, await masq.until()) == [False]  # nothing has been sent
            assert not await asyncio.to_thread(is_answered, hosts, family)
            status = await eventually(masq.status, lambda status: told(family, status) == [True])
            assert status.ready
            (cure,) = (each.cure for each in status.findings if source in each.cure)
            # The underlay learns where the address is.
            way = ("route", "replace", f"{source}/{length}", "via", IN[family.version].host)
            hosts.outside.ip(word, *way)
            assert await asyncio.to_thread(is_answered, hosts, family)
            assert told(family, await masq.status()) != [True]
            await eventually(masq.status, lambda status: told(family, status) == [])
            hosts.outside.ip(word, "route", "del", f"{source}/{length}")
            hosts.outside.ip(word, "neighbour", "flush", "dev", "uplink")
            await eventually(masq.status, lambda status: told(family, status) == [False])
            assert not await asyncio.to_thread(is_answered, hosts, family)
            await eventually(masq.status, lambda status: told(family, status) == [True])
            # The cure helps.
            host.run("sh", "-c", cure)
            await eventually(masq.status, lambda status: told(family, status) == [])
            hosts.outside.ip(word, "neighbour", "flush", "dev", "uplink")
            assert await asyncio.to_thread(is_answered, hosts, family)


@pytest.mark.parametrize("firewall", HINTS)
async def test_a_source_is_explained_and_listed_and_another_start_changes_it(
    firewall: str, lab: tuple[Lab, Host]
) -> None:
    hosts, host = lab
    host.run(*HINTS[firewall].split())
    how = "nftables" if firewall == "nftables" else "auto"
    host.run("ip", "address", "add", f"{SOURCES[4]}/32", "dev", "eth")
    words = f"leaves under the address {SOURCES[4]} (--ip-masq-source)"
    for source, said, seen in (
        (f"--ip-masq-source={SOURCES[4]}", words, SOURCES[4]),
        ("--ip-masq-source=", "leaves under the address of the interface it leaves by", IN[4].host),
    ):
        with lease_service(host) as leases:
            async with masq_on(host, "--ip-masq", f"--firewall={how}", source) as masq:
                await acquire(leases)
                assert (await masq.until()).firewall == firewall
                ran = await run(masq.directory, "explain", "pod", IN[4].outside)
                assert (ran.code, said in ran.out) == (0, True), ran.out
                rules = await run(masq.directory, "rules")
                assert (SOURCES[4] in rules.out) is (seen == SOURCES[4])
                assert await source_seen(hosts, IPV4, "pod", "outside", next(ports)) == seen
