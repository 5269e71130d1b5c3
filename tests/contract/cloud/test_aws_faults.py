"""aws-vpc when AWS refuses: what is said, and that nothing else is touched. Codes are those of AWS' reference."""

from pathlib import Path
from typing import Final

import pytest

from tests.clouds.aws import KEY_ID, SECRET, Vpc, environment, metadata
from tests.clouds.faulty import faulty
from tests.clouds.process import Leases, assert_no_secret, cloud_process, has, tells

_AWS: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}'
_READING: Final = {
    "RequestLimitExceeded": ("DescribeRouteTables", 503, "Request limit exceeded.", ""),
    "RequestExpired": ("DescribeRouteTables", 400, "Request has expired.", "renew the credentials"),
    "AuthFailure": ("DescribeRouteTables", 401, "AWS was not able to validate the credentials", "or the clock"),
    "UnauthorizedOperation": (
        "DescribeNetworkInterfaces",
        403,
        "You are not authorized to perform this operation. Encoded authorization failure message: 4GIOHlTkIaWHQD0Q",
        "give the instance role the policy of docs/backends.md#aws-vpc",
    ),
    "InternalError": ("DescribeNetworkInterfaces", 500, "An internal error has occurred.", ""),
}
"""By code: the action that it meets, the status, what AWS says, and what we add."""
_WRITING: Final = {
    "UnauthorizedOperation": (403, "You are not authorized to perform this operation.", "give the instance role"),
    "RouteLimitExceeded": (400, "The maximum number of routes has been reached.", "raise the quota `Routes per"),
    "RouteAlreadyExists": (400, "The route identified by it already exists.", ""),
    "InvalidParameterValue": (400, "route table rtb-1 and interface eni-1 belong to different networks", ""),
    "RequestLimitExceeded": (503, "Request limit exceeded.", ""),
}
"""Of CreateRoute to one of two new nodes."""
_ODD: Final = """<DescribeNetworkInterfacesResponse><networkInterfaceSet><item>
<networkInterfaceId>eni-1</networkInterfaceId></item></networkInterfaceSet></DescribeNetworkInterfacesResponse>"""
"""An interface without addresses."""
_GOES_ON: Final = ("RouteAlreadyExists", "InvalidParameterValue")
"""Those that concern one route."""
_CHECKS: Final = {"UnauthorizedOperation": "cloud-credentials", "RouteLimitExceeded": "cloud-limit"}


async def test_what_cannot_be_read_is_said_with_its_code_and_the_routes_stay(vpc: Vpc, tmp_path: Path) -> None:
    leases = Leases(tmp_path, _AWS)
    with leases.service, metadata(vpc) as url, faulty(vpc.ec2) as proxy:
        first = vpc.instance("10.99.0.11")
        one = await leases.join("n1", "10.99.0.11")
        async with cloud_process(tmp_path, environment(proxy, url), "--cloud-interval=1") as cloud:
            await cloud.until_routes("n1")
            for code, (action, status, message, cure) in _READING.items():
                proxy.faults[action] = (code, status, message)
                told = f"{action}: {code}: {message.partition('. Encoded')[0].rstrip('.')}"
                answer = await cloud.until(tells(told, cure))
                is_denied = code not in ("RequestLimitExceeded", "InternalError")
                assert ("cloud-credentials" in {each.check for each in answer.findings}) == is_denied
                assert vpc.routes() == {one: first}
                proxy.faults.clear()
                await cloud.until_routes("n1")
            proxy.faults["DescribeNetworkInterfaces"] = ("", 200, _ODD)
            await cloud.until(tells("unexpected answer"))
            proxy.faults.clear()
            await cloud.until_routes("n1")
            written = [proxy.calls[f"{verb}Route"] for verb in ("Create", "Replace", "Delete")]
            assert written == [1, 0, 0]
    assert_no_secret(tmp_path, "4GIOHlTkIaWHQD0Q")


async def test_what_cannot_be_written_leaves_the_others_and_is_tried_again(vpc: Vpc, tmp_path: Path) -> None:
    leases = Leases(tmp_path, _AWS)
    with leases.service, metadata(vpc) as url, faulty(vpc.ec2) as proxy:
        others = {"10.77.0.0/16": vpc.instance("10.99.0.99")}
        vpc.route("10.77.0.0/16", others["10.77.0.0/16"])
        routes: dict[str, str] = {}
        async with cloud_process(tmp_path, environment(proxy, url)) as cloud:
            await cloud.until(lambda answer: answer.ready)
            for n, (code, (status, message, cure)) in enumerate(_WRITING.items(), 1):
                proxy.faults["CreateRoute"] = (code, status, message)
                interface = vpc.instance(f"10.99.0.{10 + n}")
                cidr = await leases.join(f"n{n}", f"10.99.0.{10 + n}")
                told = f"CreateRoute: {code}: {message.rstrip('.')}"
                answer = await cloud.until(tells(told, cure))
                if code in _CHECKS:
                    assert _CHECKS[code] in {each.check for each in answer.findings}
                assert vpc.routes() == routes | others
                if code in _GOES_ON:
                    proxy.faults[f"CreateRoute {cidr}"] = proxy.faults.pop("CreateRoute")
                    beside = vpc.instance(f"10.99.0.{20 + n}")
                    routes[await leases.join(f"m{n}", f"10.99.0.{20 + n}")] = beside
                    await cloud.until(has(f"m{n}"))
                    assert vpc.routes() == routes | others
                proxy.faults.clear()
                routes[cidr] = interface
                await cloud.until(lambda answer: answer.ready and {r.state for r in answer.routes} == {"active"})
                assert vpc.routes() == routes | others
            assert not proxy.calls["DeleteRoute"] + proxy.calls["ReplaceRoute"]
    assert_no_secret(tmp_path, SECRET, KEY_ID)


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"AWS_REGION": "us-west-2"}, "no table: region us-west-2 has no route table of {vpc}: correct the region"),
        ({"AWS_ENDPOINT_URL": "nowhere"}, "Region: ValueError: Invalid endpoint: nowhere"),
        ({"AWS_PROFILE": "nobody"}, "Profile: ProfileNotFound: The config profile (nobody) could not be found"),
    ],
)
async def test_a_wrong_surrounding_is_said(vpc: Vpc, tmp_path: Path, environ: dict[str, str], reason: str) -> None:
    leases = Leases(tmp_path, _AWS)
    with leases.service, metadata(vpc) as url:
        await leases.join("n1", "10.99.0.11")
        async with cloud_process(tmp_path, {**environment(vpc.ec2, url), **environ}) as cloud:
            answer = await cloud.until(
                lambda answer: reason.format(vpc=vpc.name) in " ".join(answer.reasons) and bool(answer.findings)
            )
            assert [each.check for each in answer.findings] == ["cloud-credentials"]
