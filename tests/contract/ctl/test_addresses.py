"""`flannelette addresses` on files alone: which reservations are shown, and that nothing is known without a host."""

from pathlib import Path

import pytest

from tests.ctl.process import Ran, run


class Files:
    """The files of a node on which no service runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "subnet.env").write_text("FLANNEL_SUBNET=10.5.64.1/24\nFLANNEL_IPV6_SUBNET=fd00:10:5:40::1/64\n")
        (directory / "cni/networks/cbr0").mkdir(parents=True)

    def reserve(self, name: str, text: str = "c1\r\neth0") -> Path:
        path = self.directory / "cni/networks/cbr0" / name
        path.write_text(text)
        return path

    async def addresses(self, *words: str) -> Ran:
        return await run(
            self.directory,
            "addresses",
            *words,
            FLANNELD_SUBNET_FILE=f"{self.directory}/subnet.env",
            FLANNELD_CNI_STATE_DIR=f"{self.directory}/cni",
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_addresses_of_the_own_subnets_are_shown_in_their_order_and_unknown_without_a_dataplane(
    files: Files,
) -> None:
    for name in ("10.5.64.10", "10.5.64.9", "fd00:10:5:40::2", "10.9.0.2", "last_reserved_ip.0", "lock"):
        files.reserve(name)
    found = (await files.addresses("-o", "json")).json["addresses"]
    assert [each["address"] for each in found] == ["10.5.64.9", "10.5.64.10", "fd00:10:5:40::2"]
    assert {(each["state"], each["sign"]) for each in found} == {("UNKNOWN", "NONE")}
    assert found[0]["reason"].startswith("the dataplane is not seen here: ")
    assert (await files.addresses()).code == 0


async def test_nothing_unknown_is_freed_and_that_is_said(files: Files) -> None:
    path = files.reserve("10.5.64.9")
    ran = await files.addresses("--release", "--yes", "--pause=0s", "-o", "json")
    assert (ran.code, ran.json["released"], path.exists()) == (0, [], True)
    ran = await files.addresses("--release")
    assert (ran.code, "give --yes" in ran.err) == (2, True)


@pytest.mark.parametrize("lacking", ["subnet.env", "cni"])
async def test_files_that_are_not_there_are_no_empty_list(files: Files, lacking: str) -> None:
    (files.directory / lacking).rename(files.directory / "elsewhere")
    ran = await files.addresses()
    assert (ran.code, ran.out) == (1, "")
    assert str(files.directory / lacking) in ran.err


async def test_the_text_of_a_file_forges_no_line(files: Files) -> None:
    files.reserve("10.5.64.9", "\x1b[2Jc1\u2028DEAD\r\neth0\r\nmore\n")
    ran = await files.addresses("-o", "wide")
    assert len(ran.out.splitlines()) == 2
    assert "\x1b" not in ran.out
    assert "\u2028" not in ran.out


async def test_a_name_that_leads_elsewhere_is_not_followed(files: Files) -> None:
    (files.directory / "secret").write_text("token")
    (files.directory / "cni/networks/cbr0/10.5.64.9").symlink_to(files.directory / "secret")
    (found,) = (await files.addresses("-o", "json")).json["addresses"]
    assert (found["container"], found["state"]) == ("", "UNKNOWN")


async def test_another_host_is_not_answered_for(files: Files) -> None:
    files.reserve("10.5.64.9")
    ran = await files.addresses("--dataplane=10.99.0.12:9472")
    assert (ran.code, ran.out, "run it on the node" in ran.err) == (2, "", True)
