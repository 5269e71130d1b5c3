"""What the lab applies, without a cluster."""

import asyncio
import json
from pathlib import Path
from typing import Any

import yaml

from lab.kubernetes import install
from lab.kubernetes.options import parse
from tests.paths import ROOT


def patches(directory: Path, *words: str) -> dict[str, Any]:
    """Of the overlay that `apply` gets, by kind."""
    said: list[tuple[str, ...]] = []

    async def kubectl(*given: str) -> str:
        said.append(given)
        return ""

    asyncio.run(install.by_kustomize(kubectl, parse(words, {}), directory / "overlay"))
    assert said == [("apply", "-k", str(directory / "overlay"))]
    overlay = yaml.safe_load((directory / "overlay" / "kustomization.yaml").read_text())
    found = [yaml.safe_load(each["patch"]) for each in overlay["patches"]]
    return {each["kind"]: each for each in found}


def network(found: dict[str, Any]) -> dict[str, Any]:
    configuration: dict[str, Any] = json.loads(found["ConfigMap"]["data"]["net-conf.json"])
    return configuration


def test_the_network_has_the_families_and_the_backend_that_were_asked_for(tmp_path: Path) -> None:
    assert network(patches(tmp_path)) == {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}
    assert network(patches(tmp_path, "FAMILY=dual", "BACKEND=host-gw")) == {
        "Network": "10.244.0.0/16",
        "EnableIPv6": True,
        "IPv6Network": "fd00:10:244::/56",
        "Backend": {"Type": "host-gw"},
    }
    assert network(patches(tmp_path, "FAMILY=ipv6"))["EnableIPv4"] is False


def test_central_lease_services_have_the_address_of_the_overlay_unless_there_is_no_ipv4(tmp_path: Path) -> None:
    assert patches(tmp_path, "OVERLAY=central").keys() == {"ConfigMap"}
    found = patches(tmp_path, "OVERLAY=central", "FAMILY=ipv6")
    address = found["Service"]["spec"]["clusterIP"]
    containers = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in containers} == {"dataplane", "masq"}
    for container in containers:
        assert container["env"] == [{"name": "FLANNELD_LEASE_ADDRESS", "value": f"[{address}]:7070"}]


def test_what_the_way_back_leaves_is_removed_by_the_command_of_the_page() -> None:
    assert f"kubectl {' '.join(install.clean_up_words('n1'))}\n" in (ROOT / "docs" / "kubernetes.md").read_text()
