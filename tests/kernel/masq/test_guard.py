"""The fabric guard of one masq: its sets follow the leases, and are never emptied by what is away.

Which packets it stops is in `tests/kernel/cluster/test_fabric_guard.py`.
"""

import json
import signal
from collections.abc import Iterator

import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from flannelette.masq.v1 import masq_pb2 as pb
from tests.hosts.masq import Host
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess
from tests.services.masq import lease_service, masq_on
from tests.waiting import eventually

VXLAN = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
TABLE = "flannelette_guard"
ON = ("--ip-masq", "--fabric-guard=on")


@pytest.fixture
def leases(host: Host) -> Iterator[ServiceProcess]:
    """The node has the address that its lease publishes."""
    host.run("ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    with lease_service(host) as service:
        (host.lock.parent / "net-conf.json").write_text(VXLAN)
        yield service


async def take(service: ServiceProcess, node: str, public: str) -> str:
    """Returns the subnet of the lease that the node has now."""
    mac = f"02:00:00:00:00:{int(public.rpartition('.')[2]):02x}"
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        subnet = lease_pb2.Subnet(public_address=public, vxlan=lease_pb2.VxlanData(vni=1, mac=mac))
        request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[subnet], backend_type="vxlan")
        return (await stub.AcquireLease(request, wait_for_ready=True, timeout=PATIENCE)).lease.subnets[0].cidr


async def give_up(service: ServiceProcess, node: str, subnet: str) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        request = lease_pb2.ReleaseLeaseRequest(node=node, name=subnet.replace("/", "-"))
        await stub.ReleaseLease(request, timeout=PATIENCE)


def in_set(host: Host, name: str) -> set[str]:
    """The elements of a set of the guard; none, if there is no such set."""
    if not host.tries("nft", "list", "set", "inet", TABLE, name):
        return set()
    listed = json.loads(host.run("nft", "--json", "list", "set", "inet", TABLE, name))["nftables"]
    return {str(each) for entry in listed for each in entry.get("set", {}).get("elem", [])}


def handle(host: Host) -> int:
    """The kernel's number of the table, which another one would not have."""
    listed = json.loads(host.run("nft", "--json", "list", "tables"))["nftables"]
    return next(int(each["table"]["handle"]) for each in listed if each.get("table", {}).get("name") == TABLE)


async def until_peers(host: Host, *expected: str) -> None:
    await eventually(lambda: in_set(host, "peers4"), lambda found: found == set(expected))


async def test_its_sets_follow_the_leases_one_by_one(host: Host, leases: ServiceProcess) -> None:
    await take(leases, "n1", "192.0.2.1")
    subnet = await take(leases, "n2", "192.0.2.2")
    async with masq_on(host, *ON) as masq:
        await until_peers(host, "192.0.2.2")
        number = handle(host)
        assert in_set(host, "inside4_24") == {subnet.partition("/")[0]}
        third = await take(leases, "n3", "192.0.2.3")
        await until_peers(host, "192.0.2.2", "192.0.2.3")
        await take(leases, "n2", "192.0.2.4")
        await until_peers(host, "192.0.2.4", "192.0.2.3")
        await give_up(leases, "n3", third)
        await until_peers(host, "192.0.2.4")
        assert in_set(host, "inside4_24") == {subnet.partition("/")[0]}
        assert handle(host) == number
        assert "the fabric guard drops what is no peer's" in (await masq.status()).firewall_reason


async def test_what_is_away_takes_no_peer_from_it(host: Host, leases: ServiceProcess) -> None:
    """The lease service ends; then masq, and its successor knows nothing of leases."""
    await take(leases, "n1", "192.0.2.1")
    await take(leases, "n2", "192.0.2.2")
    async with masq_on(host, *ON) as masq:
        await until_peers(host, "192.0.2.2")
        number = handle(host)
        leases.__exit__(None, None, None)
        await eventually(masq.status, lambda status: not status.lease_service_connected)
        assert in_set(host, "peers4") == {"192.0.2.2"}
        await masq.end(signal.SIGKILL)
    async with masq_on(host, *ON, f"--state-dir={host.lock.parent}/other") as masq:
        await eventually(masq.reasons, lambda reasons: "lease service" in reasons)
        assert (in_set(host, "peers4"), handle(host)) == ({"192.0.2.2"}, number)


@pytest.mark.parametrize("damage", ["delete table inet", "flush chain inet", "delete element inet"])
async def test_what_another_program_does_to_it_is_undone(host: Host, leases: ServiceProcess, damage: str) -> None:
    more = {"delete table inet": "", "flush chain inet": "outer", "delete element inet": "peers4 { 192.0.2.2 }"}
    await take(leases, "n1", "192.0.2.1")
    await take(leases, "n2", "192.0.2.2")
    async with masq_on(host, *ON):
        await until_peers(host, "192.0.2.2")
        before = host.run("nft", "--stateless", "list", "chain", "inet", TABLE, "outer")
        host.run("nft", f"{damage} {TABLE} {more[damage]}")
        await until_peers(host, "192.0.2.2")
        await eventually(
            lambda: [host.run("nft", "--stateless", "list", "chain", "inet", TABLE, "outer")],
            lambda now: now == [before],
        )


async def test_a_teardown_removes_it_until_a_resync(host: Host, leases: ServiceProcess) -> None:
    await take(leases, "n1", "192.0.2.1")
    await take(leases, "n2", "192.0.2.2")
    async with masq_on(host, *ON) as masq:
        await until_peers(host, "192.0.2.2")
        rules = (await masq.stub.ListRules(pb.ListRulesRequest())).rules
        ours = [rule for rule in rules if rule.table == TABLE]
        assert ours
        assert all(rule.present and rule.reason and rule.family == "inet" for rule in ours)
        done = await masq.stub.TeardownRules(pb.TeardownRulesRequest())
        assert f"nft delete table inet {TABLE}" in done.commands
        await take(leases, "n3", "192.0.2.3")
        await eventually(lambda: [host.run("nft", "list", "tables")], lambda seen: TABLE not in seen[0])
        await masq.stub.ResyncRules(pb.ResyncRulesRequest())
        await until_peers(host, "192.0.2.2", "192.0.2.3")


@pytest.mark.parametrize(
    ("address", "flags", "said", "drops"),
    [
        ("192.0.2.1", ON, "the fabric guard drops what is no peer's", {"outer", "inner"}),
        ("192.0.2.1", ON[1:], "sources inside are only counted, without --ip-masq", {"outer"}),
        ("192.0.2.9", ON, "only counts: the public address 192.0.2.9 of this node is none of its own", set()),
        ("192.0.2.9", (*ON, "--fabric-guard-source=198.51.100.0/24"), "drops what is no", {"outer", "inner"}),
        ("192.0.2.1", ("--fabric-guard=warn",), "only counts: --fabric-guard=warn", set()),
    ],
)
async def test_where_it_could_cut_what_is_lawful_it_counts_and_says_why(
    host: Host, leases: ServiceProcess, address: str, flags: tuple[str, ...], said: str, drops: set[str]
) -> None:
    await take(leases, "n1", address)
    await take(leases, "n2", "192.0.2.2")
    async with masq_on(host, *flags) as masq:
        await until_peers(host, "192.0.2.2")
        assert said in (await masq.status()).firewall_reason
        chains = {name: host.run("nft", "list", "chain", "inet", TABLE, name) for name in ("outer", "inner")}
        last = {name: text.strip().splitlines()[-3] for name, text in chains.items()}
        assert {name for name, line in last.items() if "drop" in line} == drops, last


async def test_a_packet_is_explained(host: Host, leases: ServiceProcess) -> None:
    await take(leases, "n1", "192.0.2.1")
    subnet = await take(leases, "n2", "192.0.2.2")
    async with masq_on(host, *ON) as masq:
        await until_peers(host, "192.0.2.2")
        for packet, said in (
            (tunnelled("192.0.2.7"), "192.0.2.7 is no peer, and sends to the tunnel."),
            (tunnelled("192.0.2.2"), ""),
            (unpacked("8.8.8.8"), "8.8.8.8 is no pod of a peer, and comes out of the overlay."),
            (unpacked(subnet.replace("0/24", "2")), ""),
        ):
            told = (await masq.stub.Explain(packet)).explanation
            assert told.partition("The fabric guard drops it: ")[2] == said


def tunnelled(source: str) -> pb.ExplainRequest:
    return pb.ExplainRequest(source=source, destination="192.0.2.1", hook="input", protocol=17, port=8472)


def unpacked(source: str) -> pb.ExplainRequest:
    return pb.ExplainRequest(source=source, destination="10.5.27.2", incoming="flannel.1")
