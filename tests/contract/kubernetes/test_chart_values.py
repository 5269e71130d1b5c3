"""The chart by the helm of `make tools`, as a user calls it: it renders, and refuses values that mean nothing.

Regression tests of hole 20.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from flannelette.services.core.backend_types import BACKEND_TYPES
from tests import paths
from tests.kubernetes.manifests import of_flannel, parse, run_tool
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.tools import find_tool

CHART = ROOT / "deploy" / "helm" / "flannelette"
FLANNELS = paths.GOLDEN / "helm/flannel-values.yaml"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_helm_renders_the_chart_without_being_told_a_version_of_kubernetes() -> None:
    rendered = parse(run_tool("helm", "template", "flannel", str(CHART)))
    assert {"DaemonSet", "ConfigMap"} <= {document["kind"] for document in rendered}
    assert "0 chart(s) failed" in run_tool("helm", "lint", "--strict", str(CHART))


def test_a_helm_of_an_earlier_make_tools_is_built_again(tmp_path: Path) -> None:
    """Without a Go nothing is built, and it is said: what is tried here is whether it would be."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "helm").symlink_to("/bin/true")
    command = ["sh", str(ROOT / "lab" / "tools.sh"), "helm", str(tmp_path)]
    path = tmp_path / "path"
    path.mkdir()
    for name in ("sh", "cat", "mkdir", "dirname", "wc", "nice"):
        (path / name).symlink_to(shutil.which(name) or name)
    tried = subprocess.run(
        command, env={"PATH": str(path)}, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert "helm is left out: Go, which builds it, is not installed" in tried.stderr
    found = find_tool("helm")
    recorded = Path(f"{found}.version")
    if recorded.exists():
        (tmp_path / "bin" / "helm.version").write_text(recorded.read_text())
        tried = subprocess.run(
            command, env={"PATH": str(path)}, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert tried.stderr == ""


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("podCidr=10.244.0.0", "podCidr"),
        ("podCidr=10.244.0.0/33", "podCidr"),
        ("podCidr=", "podCidr"),
        ("podCIDR=10.244.0.0/16", "podCIDR"),
        ("podCidrv6=10.244.0.0/16", "podCidrv6"),
        ("flannel.backend=vxlam", "flannel.backend"),
        ("flannel.vni=16777216", "flannel.vni"),
        ("flannel.vni=one", "flannel.vni"),
        ("flannel.mtu=49", "flannel.mtu"),
        ("flannel.backendPort=65536", "flannel.backendPort"),
        ("flannel.macPrefix=0E:2A", "flannel.macPrefix"),
        ("flannel.directRouting=maybe", "flannel.directRouting"),
        ("flannel.args=--ip-masq", "flannel.args"),
        ("flannel.enableNfTables=true", "enableNfTables"),
        ("flannel.cniBinDir=opt/cni/bin", "flannel.cniBinDir"),
        ("flannel.healthz.port=65535", "flannel.healthz.port"),
        ("flannel.tolerations=all", "flannel.tolerations"),
        ("flannel.tolerations[0].operator=Exist", "flannel.tolerations.0.operator"),
        ("flannel.healthz.livenessProbe.period=5", "period"),
        ("flannel.healthz.readinessProbe.periodSeconds=0", "flannel.healthz.readinessProbe.periodSeconds"),
        ("flannelette.resources.masq.limit.cpu=1", "limit"),
        ("flannelette.image.registry=registry.example.org/net", "flannelette.image.registry"),
        ("flannelette.central.enable=true", "enable"),
        ("flannelette.central.replicas=0", "flannelette.central.replicas"),
        ("flannelette.central.clusterIP=lease.example.org", "flannelette.central.clusterIP"),
        ("flannelette.central.certManager.issuer.kind=ClusterIssuer", "flannelette.central.certManager.issuer"),
        ("flannelette.resources.dataplan.limits.cpu=1", "dataplan"),
        ("flannelette.updateStrategy.type=Recreate", "flannelette.updateStrategy.type"),
        ("flannelette.updateStrategy.rollingUpdate.maxSurge=1", "maxSurge"),
        ("flannelette.updateStrategy.rollingUpdate.maxUnavailable=0%", "updateStrategy.rollingUpdate.maxUnavailable"),
        ("netpol.enabled=yes please", "netpol.enabled"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_its_key(settings: str, key: str) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema") as refused:
        run_tool("helm", "template", "flannel", str(CHART), f"--set={settings}")
    named = str(refused.value).partition("flannelette:")[2]
    assert key.replace(".", "/") in named.replace(".", "/"), named


@pytest.mark.parametrize(
    "settings",
    [
        ("--set=podCidr=,podCidrv6=fd00:42::/48",),
        ("--set=flannel.mtu=0,flannel.backend=host-gw,flannel.healthz.port=0",),
        ("--set=flannelette.central.enabled=true,flannelette.central.clusterIP=fd00::70",),
        ("--set=global.something=of-another-chart",),
        (f"--values={FLANNELS}",),
    ],
    ids=str,
)
def test_what_means_something_is_not(settings: tuple[str, ...]) -> None:
    assert parse(run_tool("helm", "template", "flannel", str(CHART), *settings))


def test_the_schema_knows_every_key_and_every_backend() -> None:
    assert set(SCHEMA["properties"]["flannel"]["properties"]["backend"]["enum"]) == set(BACKEND_TYPES)
    for path in (CHART / "values.yaml", FLANNELS, of_flannel("values.yaml")):
        assert list(unknown(SCHEMA, yaml.safe_load(path.read_text()))) == []


def unknown(schema: dict[str, object], values: object, where: str = "") -> list[str]:
    """Keys that the schema does not name, where it names any."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not isinstance(values, dict):
        return []
    found = [f"{where}{key}" for key in values if key not in properties]
    return found + [
        each for key in values.keys() & properties for each in unknown(properties[key], values[key], f"{where}{key}.")
    ]
