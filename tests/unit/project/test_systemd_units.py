"""The units of deploy/systemd: what systemd says of them, and that they give no more rights than the images."""

import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Final

import pytest

from flannelette.services.runtime.process.start_notice import START_SECONDS
from tests.paths import ROOT

UNITS: Final = ROOT / "deploy/systemd"
SERVICES: Final = ("lease", "dataplane", "masq", "cloud")
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing here")


def assignments(service: str, section: str = "Service") -> dict[str, str]:
    """Of a section, the last one where there are several."""
    parser = RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capital letters
    parser.read(UNITS / f"flannelette-{service}.service")
    return dict(parser[section])


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, with programs that exist here."""
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.target")):
        text = re.sub(r"^ExecStart=.*", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    return tmp_path


@needs_systemd
def test_systemd_has_nothing_to_say_against_them(installed: Path) -> None:
    units = sorted(str(path) for path in installed.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("service", "tenths"), [("lease", 15), ("dataplane", 20), ("masq", 25), ("cloud", 15), ("node", 25)]
)
def test_little_is_exposed(service: str, tenths: int, installed: Path) -> None:
    """systemd's own figure, 0 to 10: a unit without any of this has 9.6."""
    unit = str(installed / f"flannelette-{service}.service")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={tenths}", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_gives_the_rights_of_the_image_and_no_more(service: str) -> None:
    compose = (ROOT / "deploy/compose/docker-compose.yml").read_text()
    anchor = compose.partition(f"x-{service}: &{service}\n")[2].partition("\n\n")[0]
    of_image = re.search(r"cap_add: \[([A-Z_, ]+)\]", anchor)
    expected = {f"CAP_{name}" for name in of_image[1].split(", ")} if of_image else set()
    unit = assignments(service)
    assert set(unit["CapabilityBoundingSet"].split()) == expected
    assert set(unit.get("AmbientCapabilities", "").split()) <= expected
    assert (unit["NoNewPrivileges"], unit["ProtectSystem"], unit["PrivateDevices"]) == ("yes", "strict", "yes")
    assert (unit["User"] == "root") is (service == "masq"), "without root's rights, because of xtables.lock"
    assert (unit.get("PrivateUsers") == "yes") is not bool(expected)


def test_the_unit_of_one_process_has_the_rights_of_the_three_and_runs_in_their_place() -> None:
    one, units = assignments("node"), [assignments(service) for service in ("lease", "dataplane", "masq")]
    for key, more in {"CapabilityBoundingSet": (), "RestrictAddressFamilies": (), "StateDirectory": ()}.items():
        words = {word for unit in units for word in unit[key].split() if word != "flannelette-masq"}
        assert set(one[key].split()) == {*words, *more}
    assert set(one["ReadWritePaths"].split()) == {word for unit in units for word in unit["ReadWritePaths"].split()}
    assert one["Environment"] == assignments("dataplane")["Environment"]
    assert one["ExecStart"] == "/opt/flannelette/bin/flannelette flanneld"
    assert (one["Type"], one["Restart"]) == ("notify", "always")
    for key in ("Conflicts", "After"):
        found = assignments("node", "Unit")[key]
        assert all(f"flannelette-{service}.service" in found for service in ("lease", "dataplane", "masq"))


@pytest.mark.parametrize("service", ["dataplane", "masq", "cloud"])
def test_a_unit_remembers_in_a_directory_of_its_own(service: str) -> None:
    found = assignments(service)
    assert (found["StateDirectory"], found["StateDirectoryMode"]) == (f"flannelette-{service}", "0700")
    assert found["Environment"] == f"FLANNELD_STATE_DIR=/var/lib/flannelette-{service}"


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_waits_for_readiness_and_comes_back(service: str) -> None:
    found = assignments(service)
    home = "/opt/flannelette-cloud" if service == "cloud" else "/opt/flannelette"  # boto3 is not for the others
    assert found["ExecStart"] == f"{home}/bin/flannelette-{service}"
    assert (found["Type"], found["Restart"]) == ("notify", "always")
    assert int(found["TimeoutStartSec"]) > START_SECONDS, "a start ends, and not because systemd ends the service"


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_comes_back_however_often_it_has_ended(service: str) -> None:
    """systemd's limit of five starts in ten seconds would leave it failed after its cause is mended."""
    assert assignments(service, "Unit")["StartLimitIntervalSec"] == "0"


@pytest.mark.parametrize("flags", ["", " --network=blue --network=red=unix:/red.sock"])
def test_the_lines_of_the_page_on_upgrading_make_a_unit_of_each_network(tmp_path: Path, flags: str) -> None:
    """`docs/upgrading.md`: of units of 0.2, whose processes served two networks, and of new ones."""
    page = (ROOT / "docs/upgrading.md").read_text()
    lines = next(block for block in re.findall(r"```sh\n(.*?)```", page, re.S) if "--network=red" in block)
    assert "cd /etc/systemd/system\n" in lines
    for service in ("dataplane", "masq"):
        text = (UNITS / f"flannelette-{service}.service").read_text()
        (tmp_path / f"flannelette-{service}.service").write_text(re.sub(r"(?m)^(ExecStart=.*)$", rf"\1{flags}", text))
    script = "systemctl() { :; }\n" + lines.replace("/etc/systemd/system", str(tmp_path))
    done = subprocess.run(["sh", "-eu", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    for service in ("dataplane", "masq"):
        for suffix, network in (("", "blue"), ("-red", "red")):
            unit = (tmp_path / f"flannelette-{service}{suffix}.service").read_text()
            program = f"/opt/flannelette/bin/flannelette-{service}"
            assert re.findall(r"^ExecStart=(.*)", unit, re.M) == [f"{program} --network={network}"]
