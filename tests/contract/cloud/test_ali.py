"""ali-vpc: the real process with Alibaba's SDK, against a server that speaks the documented requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clouds.ali import KEY_ID, SECRET, SECRETS, Account
from tests.clouds.process import Leases, Provider, assert_no_secret, cloud_process
from tests.clouds.server import Refusal, playing
from tests.ctl.process import run

ALI = '{"Network":"10.5.0.0/16","Backend":{"Type":"ali-vpc"%s}}'
ONE = [("10.5.1.0/24", "10.99.0.11")]


@pytest.fixture
def account() -> Iterator[Account]:
    with playing(Account()) as found:
        yield found


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    made = Provider("ali-vpc", tmp_path_factory.mktemp("ali"), DEBUG="sdk")
    yield made
    made.end()


async def test_routes_follow_nodes_that_come_go_and_move(account: Account, tmp_path: Path) -> None:
    keys = f',"AccessKeyID":"{KEY_ID}","AccessKeySecret":"{SECRET}"'
    leases = Leases(tmp_path, ALI % keys)
    for n, switch in ((1, "vsw-1"), (2, "vsw-1"), (3, "vsw-2"), (5, "vsw-1")):
        account.instance(f"i-{n}", f"10.99.0.1{n}", switch)
    account.entry("10.5.200.0/24", "i-else")
    with leases.service:
        cidrs = {n: await leases.join(f"n{n}", f"10.99.0.1{n}") for n in (1, 2, 3)}
        account.entry(cidrs[1], "i-1")  # flannel's
        async with cloud_process(tmp_path, {"DEBUG": "sdk"}, *account.flags) as cloud:
            want = {cidrs[n]: f"i-{n}" for n in (1, 2, 3)}
            there = want | {"10.5.200.0/24": "i-else"}
            await cloud.until(
                lambda status: status.ready and (account.table(), account.table("vtb-b")) == (there, want)
            )
            account.refusals["DescribeRouteTableList"] = [Refusal("x", status=503)]
            account.refusals["ModifyRouteEntry"] = [Refusal("TaskConflict")]
            await leases.leave("n3", cidrs[3])
            assert await leases.join("n2", "10.99.0.15") == cidrs[2]
            left = {cidrs[1]: "i-1", cidrs[2]: "i-5", "10.5.200.0/24": "i-else"}  # vtb-b: no node is in its vSwitches
            await cloud.until(lambda status: status.ready and (account.table(), account.table("vtb-b")) == (left, {}))
            shown = await run(tmp_path, "cloud", "status")
            assert (shown.code, "no lease has this subnet, and the route is not ours" in shown.out) == (0, True)
            dump = await run(tmp_path, "sysdump", f"--write={tmp_path}/dump.tar.gz", "--timeout=10")
            assert dump.code in (0, 1), dump.err
            assert await cloud.end() == 0
        told = (tmp_path / "cloud.log").read_text()
        assert told.count("AccessKeySecret") == 1, "the warning"
    assert account.signers == {KEY_ID}
    assert_no_secret(tmp_path, *SECRETS, told=shown.out + shown.err)


def test_the_commands_are_those_of_its_own_tool(account: Account, provider: Provider) -> None:
    account.instance("i-1", "10.99.0.11")
    account.instance("i-2", "10.99.0.12")
    account.entry("10.5.1.0/24", "i-2")
    account.entry("10.5.9.0/24", "i-9", mark="flannelette")
    change, gone = account.entries
    found = provider.do([*ONE, ("10.5.2.0/24", "10.99.0.12")], account.url, rounds=0)
    assert found["commands"] == [
        f"aliyun vpc ModifyRouteEntry --RegionId cn-hangzhou --RouteEntryId {change} --NewNextHopType Instance "
        "--NewNextHopId i-1 --Description flannelette",
        "aliyun vpc CreateRouteEntry --RegionId cn-hangzhou --RouteTableId vtb-system --NextHopType Instance "
        "--Description flannelette --DestinationCidrBlock 10.5.2.0/24 --NextHopId i-2",
        f"aliyun vpc DeleteRouteEntry --RegionId cn-hangzhou --RouteEntryId {gone}",
    ]


def test_an_entry_of_somebody_else_is_reported_and_stays(account: Account, provider: Provider) -> None:
    account.instance("i-1", "10.99.0.11")
    account.entry("10.5.1.0/24", "vpn-1", kind="VpnGateway")
    account.entry("10.5.8.0/24", "i-8")
    found = provider.do(ONE, account.url, rounds=3)
    assert (found["commands"], account.table()) == ([], {"10.5.1.0/24": "vpn-1", "10.5.8.0/24": "i-8"})
    assert [each.partition(": ")[2].split(":")[0] for each in found["problems"]] == [
        "a route of somebody else leads to vpn-1",
        "no lease has this subnet, and the route is not ours",
    ]


def test_a_table_that_is_nearly_full_is_told_and_what_fits_is_written(account: Account, provider: Provider) -> None:
    account.quota = 3
    leases = [(f"10.5.{n}.0/24", f"10.99.0.1{n}") for n in range(1, 6)]
    for n in range(1, 6):
        account.instance(f"i-{n}", f"10.99.0.1{n}")
    found = provider.do(leases, account.url, rounds=1, limit=4)
    assert len(found["findings"]) == 1
    assert (len(account.table()), len(found["errors"])) == (3, 2)
    (said,) = set(found["errors"].values())
    assert said.startswith("CreateRouteEntries: QuotaExceeded.RouteEntry: no: have Alibaba raise the quota")
    assert provider.do(leases[:4], account.url, rounds=0, limit=5)["findings"] == [], "one of five is left"


def test_of_a_batch_what_is_refused_does_not_stop_the_others(account: Account, provider: Provider) -> None:
    for n in (1, 2):
        account.instance(f"i-{n}", f"10.99.0.1{n}")
    found = provider.do([*ONE, ("10.4.0.0/24", "10.99.0.12"), ("10.5.2.0/24", "10.99.0.12")], account.url, rounds=1)
    assert account.table() == {"10.5.1.0/24": "i-1", "10.4.0.0/24": "i-2", "10.5.2.0/24": "i-2"}
    assert found["errors"] == {}
    account.entries.clear()
    account.refusals["CreateRouteEntries"] = [Refusal("InvalidNextHop.NotFound")]
    found = provider.do([*ONE, ("10.5.2.0/24", "10.99.0.12")], account.url, rounds=1)
    assert (len(account.table()), found["errors"]) == (2, {}), "each was tried by itself"


def test_an_entry_that_another_program_has_deleted_meanwhile_is_no_error(
    account: Account, provider: Provider
) -> None:
    account.entry("10.5.9.0/24", "i-9", mark="flannelette")
    account.refusals["DeleteRouteEntries"] = [Refusal("InvalidRouteEntryId.NotFound", status=404)]
    found = provider.do([], account.url, rounds=1)
    assert (found["errors"], found["made"]) == ({}, ["delete 10.5.9.0/24 via i-9 in vtb-system"])


def test_what_is_written_counts_as_written_although_its_end_cannot_be_waited_for(
    account: Account, provider: Provider
) -> None:
    account.instance("i-1", "10.99.0.11")
    looks = [None, None]  # at both tables
    account.refusals["DescribeRouteEntryList"] = [*looks, Refusal("Throttling.Api")]
    found = provider.do(ONE, account.url, rounds=1)
    assert account.refusals["DescribeRouteEntryList"] == []
    assert (found["made"], found["wait"]) == (["create 10.5.1.0/24 via i-1 in vtb-system"], "")
