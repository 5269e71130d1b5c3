"""What a release installs: the extras, and the Debian package."""

import re
import tomllib
from typing import Final

from tests.paths import ROOT

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]
ALL: Final = re.findall(r"\w+", EXTRAS["all"][0].partition("[")[2])


def test_only_its_own_extra_has_the_kubernetes_client() -> None:
    assert [name for name, wanted in EXTRAS.items() if any(each.startswith("kubernetes") for each in wanted)] == [
        "kubernetes"
    ]
    assert {"lease", "kubernetes", "dataplane", "masq", "ctl"} == set(ALL)


def test_the_image_of_the_cloud_service_has_the_versions_of_the_others() -> None:
    """But of the one library for which it is apart: boto3 and the Kubernetes client want different ones."""
    pins = []
    for file in ("constraints.txt", "constraints-cloud.txt"):
        lines = (ROOT / "deploy/images" / file).read_text().splitlines()
        pins.append(dict(line.partition(" ")[0].split("==") for line in lines if not line.startswith("#")))
    both = pins[0].keys() & pins[1].keys()
    assert {name for name in both if pins[0][name] != pins[1][name]} == {"python-dateutil"}
    named = [re.split(r"[<>=]", each)[0] for extra in ("aws", "gce", "ali", "tencent") for each in EXTRAS[extra]]
    assert set(named) <= pins[1].keys()


def test_what_builds_libraries_works_with_every_python_that_is_tested() -> None:
    """setuptools before 68 has no Python 3.12: `make deb` of Debian 13 ended in its traceback."""
    lines = (ROOT / "deploy/images/constraints.txt").read_text().splitlines()
    (pin,) = (line for line in lines if line.startswith("setuptools=="))
    assert int(pin.removeprefix("setuptools==").partition(".")[0]) >= 68


def test_a_purge_of_the_debian_package_removes_every_user_and_directory_of_the_units() -> None:
    purge = (ROOT / "deploy/debian/postrm").read_text()
    users = re.findall(r"^u (\S+)", (ROOT / "deploy/systemd/sysusers.d/flannelette.conf").read_text(), re.MULTILINE)
    assert f"for user in {' '.join(users)}; do" in purge
    for unit in (ROOT / "deploy/systemd").glob("*.service"):
        if unit.stem == "flannelette-cloud":
            continue  # the package does not have it
        (state,) = re.findall(r"^StateDirectory=(\S+)", unit.read_text(), re.MULTILINE)
        assert re.search(rf" /var/lib/{state}[ \n]", purge), unit.name
        for file in re.findall(r"^EnvironmentFile=-(\S+)", unit.read_text(), re.MULTILINE):
            assert f" {file}" in purge or file.endswith("/flannelette.env"), "the package's own file is dpkg's"
