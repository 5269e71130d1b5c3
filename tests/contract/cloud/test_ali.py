"""ali-vpc: the real process with Alibaba's SDK, against a server that speaks the documented requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clouds.ali import KEY_ID, ROLE_ID, SECRET, SECRETS, TOKEN, Account, alibaba, arguments
from tests.clouds.process import Leases, Provider, assert_no_secret, cloud_process
from tests.clouds.server import Refusal
from tests.ctl.process import run

ALI = '{"Network":"10.5.0.0/16","Backend":{"Type":"ali-vpc"%s}}'
ONE = [("10.5.1.0/24", "10.99.0.11")]


@pytest.fixture
def account() -> Iterator[Account]:
    with alibaba() as found:
        yield found


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    made = Provider("ali-vpc", tmp_path_factory.mktemp("ali"), DEBUG="sdk")
    yield made
    made.end()


def do(provider: Provider, account: Account, leases: list[tuple[str, str]], **command: Any) -> Any:
    return provider.do(leases, endpoint=account.url, metadata=account.url, **command)


async def test_routes_follow_nodes_that_come_go_and_move(account: Account, tmp_path: Path) -> None:
    keys = f',"AccessKeyID":"{KEY_ID}","AccessKeySecret":"{SECRET}"'
    leases = Leases(tmp_path, ALI % keys)
    for n, switch in ((1, "vsw-1"), (2, "vsw-1"), (3, "vsw-2"), (5, "vsw-1")):
        account.instance(f"i-{n}", f"10.99.0.1{n}", switch)
    account.entry("10.5.200.0/24", "i-else")
    with leases.service:
        cidrs = {n: await leases.join(f"n{n}", f"10.99.0.1{n}") for n in (1, 2, 3)}
        account.entry(cidrs[1], "i-1")  # flannel's
        async with cloud_process(tmp_path, {"DEBUG": "sdk"}, *arguments(account)) as cloud:
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
    found = do(provider, account, [*ONE, ("10.5.2.0/24", "10.99.0.12")], rounds=0)
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
    found = do(provider, account, ONE, rounds=3)
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
    found = do(provider, account, leases, rounds=1, limit=4)
    assert len(found["findings"]) == 1
    assert (len(account.table()), len(found["errors"])) == (3, 2)
    (said,) = set(found["errors"].values())
    assert said.startswith("CreateRouteEntries: QuotaExceeded.RouteEntry: no: have Alibaba raise the quota")
    assert do(provider, account, leases[:4], rounds=0, limit=5)["findings"] == [], "one of five is left"


def test_of_a_batch_what_is_refused_does_not_stop_the_others(account: Account, provider: Provider) -> None:
    for n in (1, 2):
        account.instance(f"i-{n}", f"10.99.0.1{n}")
    found = do(provider, account, [*ONE, ("10.4.0.0/24", "10.99.0.12"), ("10.5.2.0/24", "10.99.0.12")], rounds=1)
    assert account.table() == {"10.5.1.0/24": "i-1", "10.4.0.0/24": "i-2", "10.5.2.0/24": "i-2"}
    assert found["errors"] == {}
    account.entries.clear()
    account.refusals["CreateRouteEntries"] = [Refusal("InvalidNextHop.NotFound")]
    found = do(provider, account, [*ONE, ("10.5.2.0/24", "10.99.0.12")], rounds=1)
    assert (len(account.table()), found["errors"]) == (2, {}), "each was tried by itself"


@pytest.mark.parametrize(
    ("action", "code", "trouble", "cure"),
    [
        ("DescribeRouteTableList", "Forbidden.RAM", "DENIED", "the policy of docs/backends.md#ali-vpc"),
        ("DescribeRouteTableList", "InvalidVpcId.NotFound", "DENIED", "on an instance of the VPC"),
        ("DescribeRouteTableList", "InvalidRegionId.NotFound", "DENIED", "on an instance of the VPC"),
        ("DescribeInstances", "Forbidden.RAM", "DENIED", "the policy of docs/backends.md#ali-vpc"),
        ("DescribeInstances", "InvalidTimeStamp.Expired", "DENIED", "set the clock"),
        ("DescribeRouteEntryList", "InvalidRouteTableId.NotFound", "CHANGED", ""),
        ("DescribeRouteEntryList", "Throttling.Api", "WAIT", ""),
    ],
)
def test_what_the_provider_refuses_is_said_with_its_code_and_the_cure(
    account: Account, provider: Provider, action: str, code: str, trouble: str, cure: str
) -> None:
    account.refusals[action] = [Refusal(code)]
    found = do(provider, account, ONE)
    assert found["trouble"] == trouble
    assert found["error"].startswith(f"{action}: {code}: ")
    assert cure in found["error"]
    assert (account.entries, account.busy) == ({}, 0)


def test_without_a_role_it_is_said_what_to_set(account: Account, provider: Provider) -> None:
    account.has_role = False
    said = do(provider, account, ONE)["error"]
    assert "/latest/meta-data/ram/security-credentials/" in said
    assert "give the instance a RAM role (docs/backends.md#ali-vpc)" in said


def test_without_metadata_it_is_said_where_to_run(account: Account, provider: Provider) -> None:
    said = provider.do(ONE, endpoint=account.url, metadata="http://127.0.0.1:9")["error"]
    assert "run flannelette-cloud on an instance of the VPC" in said


@pytest.mark.parametrize(
    ("secrets", "options", "code"),
    [
        ({ROLE_ID: ("another", TOKEN)}, {}, "SignatureDoesNotMatch"),
        ({ROLE_ID: ("another", "another")}, {}, "InvalidSecurityToken.Expired"),
        ({}, {"AccessKeyID": KEY_ID, "AccessKeySecret": SECRET}, "InvalidAccessKeyId.NotFound"),
    ],
)
def test_no_error_has_a_key(
    account: Account, provider: Provider, tmp_path: Path, secrets: Any, options: Any, code: str
) -> None:
    account.keys = secrets
    found = do(provider, account, ONE, options=options)
    assert (found["trouble"], code in found["error"]) == ("DENIED", True)
    assert_no_secret(tmp_path, *SECRETS, told=str(found))


def test_one_key_alone_has_no_effect_as_in_flannel(account: Account, provider: Provider) -> None:
    assert do(provider, account, [], options={"AccessKeyID": KEY_ID})["errors"] == {}
    assert account.signers == {ROLE_ID}
