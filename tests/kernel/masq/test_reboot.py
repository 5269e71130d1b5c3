"""A reboot while nobody tells any leases: the rules are there by what masq remembers, and a service finds them so."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.runtime.cache import NodeState
from tests.examples.state_files import decode, encode
from tests.hosts.masq import Host, entered, golden
from tests.hosts.namespaces import NamespaceMaker
from tests.services.masq import NETWORK, Masq, acquire, lease_service, masq_on
from tests.waiting import contains, equals, eventually

REMEMBERED: Final = "the rules are those of "
BACKENDS: Final = ["--firewall=iptables", "--firewall=nftables"]

pytestmark = pytest.mark.usefixtures("legacy")


@asynccontextmanager
async def rebooted(host: Host, make_netns: NamespaceMaker, *arguments: str) -> AsyncIterator[tuple[Host, Masq]]:
    """A masq in a kernel that knows nothing, whose FORWARD policy is DROP as docker makes it.

    A table of our own cannot accept what the legacy tables drop.
    """
    fresh = make_netns()
    with entered(fresh, host.lock.parent) as it:
        it.use_legacy()
        it.iptables(f"-P FORWARD {'ACCEPT' if '--firewall=nftables' in arguments else 'DROP'}")
        async with masq_on(it, "--ip-masq", *arguments) as masq:
            yield it, masq


async def first_life(host: Host, *arguments: str) -> None:
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq", *arguments) as masq:
            await masq.until()
            assert await masq.end() == 0


async def remembering(masq: Masq) -> pb.Status:
    await eventually(masq.status, lambda status: any(reason.startswith(REMEMBERED) for reason in status.reasons))
    status = await eventually(masq.status, lambda status: status.rules_present != 0)
    assert not status.ready
    assert not status.lease_service_connected
    return status


def state_file(host: Host) -> Path:
    return host.lock.parent / "state/masq.state"


def memory(host: Host) -> NodeState:
    return decode("masq", state_file(host).read_bytes(), "n1")


def rewrite(host: Host, memory: NodeState, expires_at: float | None) -> None:
    assert memory.own is not None
    parts = encode("masq", "n1", memory.own.with_time(expires_at), (), memory.table_records)
    state_file(host).write_bytes(b"".join(parts))


def shown(host: Host) -> list[str]:
    """Every rule of every firewall, without counters."""
    return [*host.save(), *host.run("nft", "--stateless", "list", "ruleset").splitlines()]


@pytest.mark.parametrize("firewall", BACKENDS)
async def test_after_a_reboot_the_rules_are_as_they_were_and_a_service_that_returns_changes_nothing(
    host: Host, make_netns: NamespaceMaker, firewall: str
) -> None:
    await first_life(host, firewall)
    before = shown(host)
    assert state_file(host).stat().st_mode & 0o777 == 0o600
    async with rebooted(host, make_netns, firewall) as (fresh, masq):
        status = await remembering(masq)
        assert shown(fresh) == before
        assert (list(status.networks), list(status.subnets)) == (["10.5.0.0/16"], ["10.5.27.0/24"])
        assert (status.rules, status.rules_present) == (10, 10)
        masq.log.write_text("")
        with lease_service(fresh):
            status = await masq.until()
            assert (shown(fresh), status.repairs) == (before, 0)
            assert "rules put in place" not in masq.log.read_text()


@pytest.mark.parametrize("asked", ["true", "false"])
async def test_a_state_of_before_the_network_asked_for_another_firewall_moves_nothing(host: Host, asked: str) -> None:
    config, old = host.lock.parent / "net-conf.json", b""
    with lease_service(host) as leases:
        await acquire(leases)
        for asks in (asked, "false" if asked == "true" else "true"):
            config.write_text(NETWORK.replace('"Network"', f'"EnableNFTables":{asks},"Network"'))
            async with masq_on(host, "--ip-masq") as masq:
                await masq.until(fits=lambda status: (status.firewall == "nftables") is (asks == "true"))  # noqa: B023 - it is done in this turn
                assert await masq.end() == 0
            old = old or state_file(host).read_bytes()
    before = shown(host)
    state_file(host).write_bytes(old)
    async with masq_on(host, "--ip-masq") as masq:
        status = await remembering(masq)
        assert shown(host) == before
        assert (status.firewall == "nftables") is (asked == "false")


async def test_rules_that_are_remembered_are_healed_too(host: Host, make_netns: NamespaceMaker) -> None:
    await first_life(host)
    async with rebooted(host, make_netns) as (fresh, masq):
        await remembering(masq)
        fresh.iptables("-F FORWARD", "-t nat -F")
        await eventually(fresh.save, equals(golden("ipv4")))


async def test_an_own_lease_that_has_run_out_leaves_the_forward_rules(host: Host, make_netns: NamespaceMaker) -> None:
    await first_life(host)
    rewrite(host, memory(host), expires_at=1_000_000.0)
    async with rebooted(host, make_netns) as (fresh, masq):
        status = await remembering(masq)
        assert fresh.save() == golden("ipv4-forward-only")
        assert any("may be another node's by now: the lease has expired" in reason for reason in status.reasons)
        with lease_service(fresh):
            await masq.until()
            assert fresh.save() == golden("ipv4")


async def test_a_network_that_is_not_allowed_is_not_taken_from_memory(host: Host, make_netns: NamespaceMaker) -> None:
    await first_life(host)
    async with rebooted(host, make_netns, "--allowed-network=10.9.0.0/16") as (fresh, masq):
        await eventually(masq.log.read_text, contains("cached leases are in force"))
        await eventually(masq.reasons, contains("not within what --allowed-network allows"))
        assert fresh.tables() <= {"filter"}
        assert fresh.save() == []


@pytest.mark.parametrize("firewall", BACKENDS)
async def test_of_a_restart_the_firewall_knows_more(host: Host, firewall: str) -> None:
    """masq was killed before it wrote what it had heard: the older file takes nothing away."""
    await first_life(host, firewall)

    _another_network(host, firewall)
    kept = shown(host)
    async with masq_on(host, "--ip-masq", firewall) as masq:
        await eventually(masq.log.read_text, contains("cached leases are in force"))
        await eventually(masq.log.read_text, contains("stay until a lease service sends the network"))
        assert shown(host) == kept
        assert masq.log.read_text().count("stay until a lease service sends the network") == 1
        with lease_service(host):
            await masq.until()
            assert shown(host) != kept


def _another_network(host: Host, firewall: str) -> None:
    """Into the FORWARD chain that we keep."""
    if firewall == "--firewall=iptables":
        host.iptables("-A FLANNEL-FWD -s 10.6.0.0/16 -j ACCEPT")
    else:
        host.run("nft", *"add rule ip flannelette forward ip saddr 10.6.0.0/16 accept".split())


@pytest.mark.parametrize("damage", ["damaged", "of another node"])
async def test_a_file_that_cannot_be_used_is_refused_in_one_line_and_kept(
    host: Host, make_netns: NamespaceMaker, damage: str
) -> None:
    await first_life(host)
    path = state_file(host)
    data = path.read_bytes()
    bad = {
        "damaged": bytes(byte ^ 1 for byte in data),
        "of another node": b"".join(encode("masq", "n7", None, (), memory(host).table_records)),
    }[damage]
    path.write_bytes(bad)
    async with rebooted(host, make_netns) as (fresh, masq):
        await eventually(masq.reasons, contains("is flannelette-lease running"))  # what is cached would be used now
        await eventually(lambda: masq.log.read_text(), contains("the state file is not used"))
        assert (fresh.save(), path.read_bytes()) == ([], bad)
        with lease_service(fresh):
            await masq.until()
            assert fresh.save() == golden("ipv4")
            assert await masq.end(signal.SIGTERM) == 0
        assert masq.log.read_text().count("the state file is not used") == 1
    assert path.with_name(f"{path.name}.refused").read_bytes() == bad
    assert memory(host).own is not None


async def test_a_directory_that_cannot_be_used_costs_only_the_memory(host: Host) -> None:
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq", "--state-dir=/proc/no") as masq:
            await masq.until()
            assert masq.log.read_text().count("no state is kept for a reboot") == 1
