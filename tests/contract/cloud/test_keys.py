"""ali-vpc and tencent-vpc: what is said where a key or a right is missing, and that no key is said."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clouds import ali, tencent
from tests.clouds.process import Provider, assert_no_secret
from tests.clouds.server import Account, Refusal, playing

CLOUDS: Final = {"ali-vpc": ali, "tencent-vpc": tencent}
ONE: Final = [("10.5.1.0/24", "10.99.0.11")]
_REFUSALS: Final = """
    ali-vpc DescribeRouteTableList Forbidden.RAM DENIED the policy of docs/backends.md#ali-vpc
    ali-vpc DescribeRouteTableList InvalidVpcId.NotFound DENIED on an instance of the VPC
    ali-vpc DescribeRouteTableList InvalidRegionId.NotFound DENIED on an instance of the VPC
    ali-vpc DescribeInstances Forbidden.RAM DENIED the policy of docs/backends.md#ali-vpc
    ali-vpc DescribeInstances InvalidTimeStamp.Expired DENIED set the clock
    ali-vpc DescribeRouteEntryList InvalidRouteTableId.NotFound CHANGED
    ali-vpc DescribeRouteEntryList Throttling.Api WAIT
    tencent-vpc DescribeRouteTables AuthFailure.UnauthorizedOperation DENIED docs/backends.md#tencent-vpc
    tencent-vpc DescribeNetworkInterfaces UnauthorizedOperation.CamNoAuth DENIED docs/backends.md#tencent-vpc
    tencent-vpc DescribeNetworkInterfaces UnsupportedRegion DENIED on an instance of the VPC
    tencent-vpc DescribeRouteTables AuthFailure.SignatureExpire DENIED set the clock
    tencent-vpc DescribeRouteTables RequestLimitExceeded WAIT
    tencent-vpc DescribeRouteTables InternalServerError WAIT
"""
"""Backend, action, code, what follows from it, and the cure."""
_WRONG: Final = """
    ali-vpc secret SignatureDoesNotMatch
    ali-vpc token InvalidSecurityToken.Expired
    ali-vpc options InvalidAccessKeyId.NotFound
    tencent-vpc secret AuthFailure.SignatureFailure
    tencent-vpc token AuthFailure.TokenFailure
    tencent-vpc options AuthFailure.SecretIdNotFound
"""
"""Backend, what the provider does not know, and the code."""


@pytest.fixture(scope="module")
def providers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Provider]]:
    made = {name: Provider(name, tmp_path_factory.mktemp(name), DEBUG="sdk") for name in CLOUDS}
    yield made
    for provider in made.values():
        provider.end()


@pytest.fixture
def provider(providers: Mapping[str, Provider], backend: str) -> Provider:
    return providers[backend]


@pytest.fixture
def account(backend: str) -> Iterator[Account]:
    with playing(CLOUDS[backend].Account()) as found:
        yield found


def _rows(text: str, columns: int) -> list[tuple[str, ...]]:
    return [(*line.split(maxsplit=columns - 1), "")[:columns] for line in text.strip().splitlines()]


@pytest.mark.parametrize(("backend", "action", "code", "trouble", "cure"), _rows(_REFUSALS, 5))
def test_what_the_provider_refuses_is_said_with_its_code_and_the_cure(
    account: Account, provider: Provider, action: str, code: str, trouble: str, cure: str
) -> None:
    account.refusals[action] = [Refusal(code)]
    found = provider.do(ONE, account.url)
    assert found["trouble"] == trouble
    assert found["error"].startswith(f"{action}: {code}: ")
    assert cure in found["error"]
    assert not [call for call in account.calls if not call.startswith("Describe")]


@pytest.mark.parametrize(
    ("backend", "path", "cure"),
    [
        ("ali-vpc", "ram", "give the instance a RAM role (docs/backends.md#ali-vpc)"),
        ("tencent-vpc", "cam", "give the instance a CAM role (docs/backends.md#tencent-vpc)"),
    ],
)
def test_without_a_role_it_is_said_what_to_set(account: Account, provider: Provider, path: str, cure: str) -> None:
    account.has_role = False
    said = provider.do(ONE, account.url)["error"]
    assert f"/latest/meta-data/{path}/security-credentials/" in said
    assert cure in said


@pytest.mark.parametrize("backend", CLOUDS)
def test_without_metadata_it_is_said_where_to_run(provider: Provider) -> None:
    said = provider.do(ONE, "http://127.0.0.1:9")["error"]
    assert "run flannelette-cloud on an instance of the VPC" in said


@pytest.mark.parametrize(("backend", "unknown", "code"), _rows(_WRONG, 3))
def test_no_error_has_a_key(
    backend: str, account: Account, provider: Provider, tmp_path: Path, unknown: str, code: str
) -> None:
    cloud: Any = CLOUDS[backend]
    token = "another" if unknown == "token" else cloud.TOKEN
    account.keys = {cloud.ROLE_ID: ("another", token)}
    options = {"AccessKeyID": cloud.KEY_ID, "AccessKeySecret": cloud.SECRET} if unknown == "options" else {}
    found = provider.do(ONE, account.url, options=options)
    assert (found["trouble"], code in found["error"]) == ("DENIED", True)
    assert_no_secret(tmp_path, *cloud.SECRETS, told=str(found))


@pytest.mark.parametrize("backend", CLOUDS)
def test_one_key_alone_has_no_effect_as_in_flannel(backend: str, account: Account, provider: Provider) -> None:
    cloud: Any = CLOUDS[backend]
    assert provider.do([], account.url, options={"AccessKeyID": cloud.KEY_ID})["errors"] == {}
    assert account.signers == {cloud.ROLE_ID}


@pytest.mark.parametrize(
    ("backend", "file"), [("ali-vpc", ".alibabacloud/credentials.ini"), ("tencent-vpc", ".tencentcloud/credentials")]
)
def test_a_broken_file_of_keys_is_told_and_not_quoted(
    backend: str, account: Account, provider: Provider, file: str
) -> None:
    cloud: Any = CLOUDS[backend]
    path = provider.home / file
    path.parent.mkdir()
    path.write_text(f"secret_key = {cloud.SECRET}\n")  # without a section
    found = provider.do(ONE, account.url)
    path.unlink()
    assert found["trouble"] == "DENIED"
    assert "no credentials: a file in which the SDK looks for keys cannot be read" in found["error"]
    assert cloud.SECRET not in str(found)
