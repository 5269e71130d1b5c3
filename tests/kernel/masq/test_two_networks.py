"""Rules of another network's flanneld stay as they are and are shown; those of our former networks go.

Regression tests of hole 15.
"""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Step, Table, Upserted
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.runtime.os.names import RANGE, Claims, NameClaim
from tests.flannel.old_rules import leave
from tests.hosts.masq import Host, HostsFirewall, free_of, reconciler_of, reconcilers_of
from tests.services.masq import acquire, lease_service, masq_on

OTHER, OTHER_SUBNET = ip_network("10.6.0.0/16"), ip_network("10.6.3.0/24")
HINT = "-t mangle -N KUBE-IPTABLES-HINT"
FIREWALLS = ["legacy", "nft"]


def network(cidr: str) -> NetworkConfig:
    return parse_network(f'{{"Network":"{cidr}","Backend":{{"Type":"vxlan"}}}}')


def save(host: Host, firewall: str) -> list[str]:
    """The rules of both shared chains and the jumps, without counters."""
    text = host.run(f"iptables-{firewall}-save")
    return [line for line in text.splitlines() if line.startswith("-A") and "FLANNEL" in line]


def of(lines: list[str], cidr: Network) -> list[str]:
    return [line for line in lines if str(cidr)[:5] in line]


@pytest.mark.parametrize("firewall", FIREWALLS)
async def test_rules_of_another_network_stay_and_are_shown(firewall: str, host: Host) -> None:
    host.run(f"iptables-{firewall}", *HINT.split())
    leave(host, firewall, "v0.28", OTHER, OTHER_SUBNET, random=True)
    before = of(save(host, firewall), OTHER)
    assert len(before) == 7
    with lease_service(host) as leases:
        async with masq_on(host, "--ip-masq", "--iptables-resync=1") as masq:
            await acquire(leases)
            status = await masq.until()
            assert list(status.other_networks) == [str(OTHER)]
            now = save(host, firewall)
            assert of(now, OTHER) == before
            assert len(of(now, ip_network("10.5.0.0/16"))) == 7
            rules = (await masq.stub.ListRules(pb.ListRulesRequest())).rules
            shown = [rule.text for rule in rules if rule.reason == "Another network's: it stays as it is."]
            assert sorted(shown) == sorted(before)
            assert (status.rules, status.rules_present) == (10, 10)
            assert list((await masq.stub.ResyncRules(pb.ResyncRulesRequest(dry_run=True))).commands) == []
            host.run(f"iptables-{firewall}", "-D", "FLANNEL-FWD", "1")  # ours: it is put back, and theirs stay
            await masq.until(repairs=1)
            assert sorted(save(host, firewall)) == sorted(now)
            await masq.stub.TeardownRules(pb.TeardownRulesRequest())
            left = save(host, firewall)
            assert of(left, OTHER) == before
            assert of(left, ip_network("10.5.0.0/16")) == []
            assert len([line for line in left if "-j FLANNEL" in line]) == 2
            await masq.stub.ResyncRules(pb.ResyncRulesRequest())
            await masq.until()
            assert sorted(save(host, firewall)) == sorted(now)


async def test_a_table_of_another_networks_flanneld_stays(host: Host) -> None:
    leave(host, "nftables", "v0.28", OTHER, OTHER_SUBNET, random=True)
    before = host.run("nft", "--stateless", "list", "table", "ip", "flannel-ipv4")
    with lease_service(host) as leases:
        async with masq_on(host, "--ip-masq", "--firewall=nftables") as masq:
            await acquire(leases)
            status = await masq.until()
            assert list(status.other_networks) == [str(OTHER)]
            assert host.run("nft", "--stateless", "list", "table", "ip", "flannel-ipv4") == before
            await masq.stub.TeardownRules(pb.TeardownRulesRequest())
            assert host.run("nft", "--stateless", "list", "table", "ip", "flannel-ipv4") == before
            assert "flannelette" not in host.run("nft", "list", "tables")


@pytest.mark.parametrize("firewall", FIREWALLS)
async def test_rules_of_an_old_flanneld_that_are_about_another_network_stay(firewall: str, host: Host) -> None:
    """Those of a flanneld before v0.20 stand in the kernel's chains, in every kind of iptables."""
    other = "legacy" if firewall == "nft" else "nft"
    host.run(f"iptables-{firewall}", *HINT.split())
    for kind in (firewall, other):
        leave(host, kind, "v0.12", OTHER, OTHER_SUBNET, random=True)
        leave(host, kind, "v0.12", ip_network("10.5.0.0/16"), ip_network("10.5.27.0/24"), random=True)

    def bare(cidr: str) -> list[str]:
        lines = [line for kind in FIREWALLS for line in host.run(f"iptables-{kind}-save").splitlines()]
        return [line for line in lines if cidr in line and "flanneld" not in line]

    before = bare("10.6.")
    assert len(before) == 12
    with lease_service(host) as leases:
        async with masq_on(host, "--ip-masq", "--iptables-resync=1") as masq:
            await acquire(leases)
            await masq.until()
            assert bare("10.6.") == before
            assert bare("10.5.") == []


@pytest.fixture(params=FIREWALLS)
async def reconciler(request: pytest.FixtureRequest, host: Host) -> AsyncIterator[Any]:
    host.run(f"iptables-{request.param}", *HINT.split())
    firewall = HostsFirewall("auto", host.lock)
    yield reconciler_of(firewall)
    await firewall.close()


def dual(cidr: str, ipv6: str) -> NetworkConfig:
    return parse_network(
        f'{{"Network":"{cidr}","EnableIPv6":true,"IPv6Network":"{ipv6}","Backend":{{"Type":"vxlan"}}}}'
    )


async def put(reconciler: Any, config: NetworkConfig, *subnets: str) -> None:
    table = Table()
    lease = Lease("own", "n1", tuple(Subnet(ip_network(subnet)) for subnet in subnets), "vxlan")
    table.fold(Step(reset=True, network=config, changes=(Upserted(lease),), synced=True))
    reconciler.learn(table, away="")
    await reconciler.resync(dry_run=False)


async def test_rules_of_a_former_network_and_subnet_of_ours_go(host: Host, reconciler: Any) -> None:
    await put(reconciler, network("10.5.0.0/16"), "10.5.27.0/24")
    firewall = reconciler.firewall.name.removeprefix("iptables-")
    await put(reconciler, network("10.5.0.0/16"), "10.5.9.0/24")
    assert not any("10.5.27" in line for line in save(host, firewall))
    await put(reconciler, network("10.7.0.0/16"), "10.7.9.0/24")
    now = save(host, firewall)
    assert not any("10.5" in line for line in now)
    assert len(of(now, ip_network("10.7.0.0/16"))) == 7
    leave(host, firewall, "v0.28", ip_network("10.5.0.0/16"), ip_network("10.5.27.0/24"), random=True)
    await put(reconciler, network("10.7.0.0/16"), "10.7.9.0/24")  # by now it is another's
    assert len(of(save(host, firewall), ip_network("10.5.0.0/16"))) == 7
    assert len(of(save(host, firewall), ip_network("10.7.0.0/16"))) == 7


async def test_what_an_earlier_process_had_put_there_goes_too(host: Host, reconciler: Any) -> None:
    await put(reconciler, network("10.5.0.0/16"), "10.5.27.0/24")
    firewall = reconciler.firewall.name.removeprefix("iptables-")
    earlier = network("10.5.0.0/16")
    second = reconciler_of(reconciler.firewall, earlier_network=earlier)
    await put(second, network("10.7.0.0/16"), "10.7.9.0/24")
    assert not any("10.5" in line for line in save(host, firewall))
    assert len(of(save(host, firewall), ip_network("10.7.0.0/16"))) == 7


async def test_what_another_network_has_by_now_of_an_earlier_process_stays(host: Host, reconciler: Any) -> None:
    """Two networks have swapped their ranges; the one that starts now ran last with what the other has."""
    await put(reconciler, network("10.5.0.0/16"), "10.5.27.0/24")  # by now another network's
    firewall = reconciler.firewall.name.removeprefix("iptables-")
    before = save(host, firewall)
    with Claims("masq", "red") as red, Claims("masq", "blue") as blue:
        red.take([NameClaim(RANGE, "10.5.0.0/16")])
        earlier = network("10.5.0.0/16")
        second = reconciler_of(reconciler.firewall, earlier_network=earlier, unclaimed=free_of(blue))
        await put(second, network("10.7.0.0/16"), "10.7.9.0/24")
        assert of(save(host, firewall), ip_network("10.5.0.0/16")) == of(before, ip_network("10.5.0.0/16"))
        assert len(of(save(host, firewall), ip_network("10.7.0.0/16"))) == 7


@pytest.mark.parametrize("firewall", ["iptables", "nftables"])
async def test_two_of_ours_keep_their_rules_beside_each_other(firewall: str, host: Host) -> None:
    """Both families; also in nftables, where each network has tables of its own."""
    listing = ("nft", "--stateless", "list", "ruleset")
    blue, red = reconcilers_of(firewall, host, "", "red")
    await put(blue, dual("10.5.0.0/16", "fd00:10:5::/48"), "10.5.27.0/24", "fd00:10:5:1b::/64")
    await put(red, dual("10.6.0.0/16", "fd00:10:6::/48"), "10.6.3.0/24", "fd00:10:6:3::/64")
    both = host.run(*listing)
    for subnet in ("10.5.27.0/24", "10.6.3.0/24", "fd00:10:5:1b::/64", "fd00:10:6:3::/64"):
        assert both.count(subnet) == 3
    for each in (blue, red, blue):
        assert await each.resync(dry_run=False) == []
    assert host.run(*listing) == both
    await blue.teardown(dry_run=False)
    left = host.run(*listing)
    assert ("10.5." in left, left.count("10.6.3.0/24")) == (False, 3)
    assert ("fd00:10:5:" in left, left.count("fd00:10:6:3::/64")) == (False, 3)
    assert await red.resync(dry_run=True) == []
    for each in (blue, red):
        await each.firewall.close()


@pytest.mark.parametrize("firewall", FIREWALLS)
async def test_two_of_ours_and_a_flanneld_that_repair_at_once_take_no_rule_from_each_other(
    firewall: str, host: Host
) -> None:
    """Each reads and then writes, and between the two come the others. flanneld deletes the rule that all share."""
    host.run(f"iptables-{firewall}", *HINT.split())
    leave(host, firewall, "v0.28", ip_network("10.7.0.0/16"), ip_network("10.7.3.0/24"), random=True)
    firewalls = [HostsFirewall("auto", host.lock) for _ in range(2)]
    blue, red = map(reconciler_of, firewalls)
    await put(blue, network("10.5.0.0/16"), "10.5.27.0/24")
    await put(red, network("10.6.0.0/16"), "10.6.3.0/24")
    rules = {line for line in save(host, firewall) if any(net in line for net in ("10.5.", "10.6.", "10.7."))}
    assert len(rules) == 3 * 7
    program, table = f"iptables-{firewall}", ("-w", "-t", "nat")
    mark = (
        "FLANNEL-POSTRTG",
        *"-m mark --mark 0x4000/0x4000 -m comment --comment".split(),
        "flanneld masq",
        "-j",
        "RETURN",
    )
    for _ in range(5):
        host.run(program, *table, "-D", *mark)
        other = asyncio.to_thread(host.run, program, *table, "-A", *mark)
        await asyncio.gather(other, *(each.resync(dry_run=False) for each in (blue, red)))
        assert rules <= set(save(host, firewall))
    for each in (blue, red, blue):
        await each.resync(dry_run=False)
    assert [await each.resync(dry_run=True) for each in (blue, red)] == [[], []]
    assert len([line for line in save(host, firewall) if "0x4000" in line]) == 1
    for kept in firewalls:
        await kept.close()


async def test_a_rule_that_iptables_does_not_find_by_its_text_is_deleted_too(host: Host) -> None:
    """With `-m recent`, `iptables-nft -D` finds no rule by what `iptables-nft-save` prints of it."""
    host.run("iptables-nft", *HINT.split())
    firewall = HostsFirewall("auto", host.lock)
    blue = reconciler_of(firewall)
    await put(blue, network("10.5.0.0/16"), "10.5.27.0/24")
    before = save(host, "nft")
    odd = "-s 10.5.0.0/16 -m recent --name seen --set -m comment --comment"
    host.run("iptables-nft", "-t", "nat", "-I", "FLANNEL-POSTRTG", "2", *odd.split(), "flanneld masq", "-j", "RETURN")
    assert len(save(host, "nft")) == len(before) + 1
    await blue.resync(dry_run=False)
    assert save(host, "nft") == before
    await firewall.close()
