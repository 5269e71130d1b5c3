"""tencent-vpc: the real process with Tencent's SDK, against a server that speaks the documented requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clouds.process import Leases, Provider, assert_no_secret, cloud_process
from tests.clouds.server import Refusal, playing
from tests.clouds.tencent import KEY_ID, ROLE_ID, SECRET, SECRETS, Account
from tests.ctl.process import run

TENCENT = '{"Network":"10.5.0.0/16","Backend":{"Type":"tencent-vpc"}}'
ONE = [("10.5.1.0/24", "10.99.0.11")]


@pytest.fixture
def account() -> Iterator[Account]:
    with playing(Account()) as found:
        yield found


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    made = Provider("tencent-vpc", tmp_path_factory.mktemp("tencent"))
    yield made
    made.end()


async def test_routes_follow_nodes_that_come_go_and_move(account: Account, tmp_path: Path) -> None:
    leases = Leases(tmp_path, TENCENT)
    for n, subnet in ((1, "subnet-1"), (2, "subnet-1"), (3, "subnet-2"), (5, "subnet-1")):
        account.instance(f"10.99.0.1{n}", subnet)
    account.route("10.5.200.0/24", "10.99.0.99")
    with leases.service:
        cidrs = {n: await leases.join(f"n{n}", f"10.99.0.1{n}") for n in (1, 2, 3)}
        account.route(cidrs[1], "10.99.0.11")  # flannel's
        account.route(cidrs[2], "10.99.0.12", Enabled=False)
        async with cloud_process(tmp_path, {}, *account.flags, "--v=1") as cloud:
            want = {cidrs[n]: f"10.99.0.1{n}" for n in (1, 2, 3)}
            there = want | {"10.5.200.0/24": "10.99.0.99"}
            await cloud.until(
                lambda status: status.ready and (account.table(), account.table("rtb-b")) == (there, want)
            )
            account.refusals["DescribeRouteTables"] = [Refusal("RequestLimitExceeded")]
            account.refusals["ReplaceRoutes"] = [Refusal("RequestLimitExceeded.UinLimitExceeded")]
            await leases.leave("n3", cidrs[3])
            assert await leases.join("n2", "10.99.0.15") == cidrs[2]
            want = {cidrs[1]: "10.99.0.11", cidrs[2]: "10.99.0.15"}
            there = want | {"10.5.200.0/24": "10.99.0.99"}
            await cloud.until(
                lambda status: status.ready and (account.table(), account.table("rtb-b")) == (there, {})
            )
            shown = await run(tmp_path, "cloud", "status")
            assert (shown.code, "no lease has this subnet, and the route is not ours" in shown.out) == (0, True)
            assert await cloud.end() == 0
    assert account.signers == {ROLE_ID}
    assert_no_secret(tmp_path, *SECRETS, told=shown.out + shown.err)


def test_the_commands_are_those_of_its_own_tool(account: Account, provider: Provider) -> None:
    for n in (1, 2):
        account.instance(f"10.99.0.1{n}")
    account.route("10.5.1.0/24", "10.99.0.12")
    account.route("10.5.3.0/24", "10.99.0.11", Enabled=False)
    account.route("10.5.9.0/24", "10.99.0.19", mark="flannelette")
    leases = [*ONE, ("10.5.2.0/24", "10.99.0.12"), ("10.5.3.0/24", "10.99.0.11")]
    found = provider.do(leases, account.url, rounds=0)
    to, more = '"GatewayType": "NORMAL_CVM", "GatewayId"', '"RouteDescription": "flannelette", "Enabled": true'
    assert found["commands"] == [
        'tccli vpc ReplaceRoutes --region ap-guangzhou --RouteTableId rtb-main --Routes \'[{"RouteId": 1000, '
        f'"DestinationCidrBlock": "10.5.1.0/24", {to}: "10.99.0.11", {more}}}]\'',
        "tccli vpc EnableRoutes --region ap-guangzhou --RouteTableId rtb-main --RouteIds '[1001]'",
        "tccli vpc CreateRoutes --region ap-guangzhou --RouteTableId rtb-main --Routes "
        f'\'[{{"DestinationCidrBlock": "10.5.2.0/24", {to}: "10.99.0.12", {more}}}]\'',
        "tccli vpc DeleteRoutes --region ap-guangzhou --RouteTableId rtb-main --Routes '[{\"RouteId\": 1002}]'",
    ]
    assert provider.do(leases, account.url, rounds=3)["left"] == []
    assert account.table() == dict(leases)


def test_a_route_of_somebody_else_is_reported_and_stays(account: Account, provider: Provider) -> None:
    account.instance("10.99.0.11")
    account.route("10.5.1.0/24", "vpngw-1", GatewayType="VPN")
    found = provider.do(ONE, account.url, rounds=3)
    assert (found["commands"], account.table()) == ([], {"10.5.1.0/24": "vpngw-1"})
    assert "a route of somebody else leads to VPN:vpngw-1" in found["problems"][0]


def test_a_table_that_is_full_gets_what_fits(account: Account, provider: Provider) -> None:
    account.quota = 3
    leases = [(f"10.5.{n}.0/24", f"10.99.0.1{n}") for n in range(1, 6)]
    for n in range(1, 6):
        account.instance(f"10.99.0.1{n}")
    found = provider.do(leases, account.url, rounds=1, limit=4)
    assert len(found["findings"]) == 1
    assert (len(account.table()), len(found["errors"])) == (3, 2)
    (said,) = set(found["errors"].values())
    assert said.startswith("CreateRoutes: LimitExceeded: as the provider says it: have Tencent raise the quota")


def test_of_a_batch_what_is_refused_does_not_stop_the_others(account: Account, provider: Provider) -> None:
    for n in (1, 2):
        account.instance(f"10.99.0.1{n}")
    account.refusals["CreateRoutes"] = [Refusal("InvalidParameterValue.Malformed")] * 2
    found = provider.do([*ONE, ("10.5.2.0/24", "10.99.0.12")], account.url, rounds=1)
    assert account.table() == {"10.5.2.0/24": "10.99.0.12"}
    assert list(found["errors"]) == ["10.5.1.0/24"]


def test_keys_of_the_options_sign_and_are_warned_about(account: Account, provider: Provider) -> None:
    account.instance("10.99.0.11")
    found = provider.do(ONE, account.url, options={"AccessKeyID": KEY_ID, "AccessKeySecret": SECRET}, rounds=2)
    assert (account.table(), account.signers) == ({"10.5.1.0/24": "10.99.0.11"}, {KEY_ID})
    (warning,) = found["warnings"]
    assert "docs/backends.md#tencent-vpc" in warning
