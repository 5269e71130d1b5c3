"""What is in the images, and what is not."""

import json
import subprocess
from itertools import chain
from typing import Any

import pytest

from flannelette.services.runtime.process.version import VERSION
from tests.compose.composition import docker
from tests.paths import ROOT

pytestmark = [pytest.mark.compose, pytest.mark.usefixtures("directory")]

SERVICES = ["lease", "dataplane", "masq", "cloud", "ctl", "all"]
OWN = {
    "lease": ["etcd3", "kubernetes"],
    "dataplane": ["pyroute2", "re2", "vici"],
    "masq": ["iptc"],
    "ctl": ["cryptography"],
}
OWN["all"] = list(chain(*OWN.values()))
OWN["cloud"] = ["cryptography", "alibabacloud_tea_openapi", "boto3", "google.auth", "tencentcloud"]
ANY = sorted({*OWN["all"], *OWN["cloud"]})
LEAST = ("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--rm")
LAYERS = "--format={{json .RootFS.Layers}}"
NOT_THERE = "gcc cc make pip pip3 git curl wget"

LIST = """
import importlib.metadata, sys
for found in importlib.metadata.distributions(path=[path for path in sys.path if "flannelette" in path]):
    print(f"{found.name}=={found.version}")
"""


def run(name: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in an image, with no right at all."""
    command = ["docker", "run", *LEAST, f"--entrypoint={program}", f"flannelette-{name}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def config(name: str) -> Any:
    return json.loads(docker("image", "inspect", "--format={{json .Config}}", f"flannelette-{name}"))


@pytest.mark.parametrize("name", SERVICES)
def test_its_program_starts_on_a_read_only_root_without_a_right(name: str) -> None:
    program = f"flannelette-{name}" if name in ("lease", "dataplane", "masq", "cloud") else "flannelette"
    done = run(name, program, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert VERSION in done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_the_command_line_is_in_every_image(name: str) -> None:
    done = run(name, "flannelette", "status")
    assert (done.returncode, "no service answers" in done.stdout) == (2, True), done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_there_is_no_compiler_and_nothing_to_fetch_more_with(name: str) -> None:
    found = run(name, "sh", "-c", f"for program in {NOT_THERE}; do command -v $program; done; true")
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_each_has_its_own_libraries_and_not_those_of_the_others(name: str) -> None:
    code = "import importlib.util as u, sys; print([m for m in sys.argv[1:] if u.find_spec(m)])"
    found = run(name, "python3", "-c", code, *ANY, "pytest")
    assert found.stdout.strip() == str(sorted(OWN[name])), found.stderr


def test_the_services_of_a_node_have_their_libraries_in_one_layer() -> None:
    """So that they are in memory once."""
    layers = {name: json.loads(docker("image", "inspect", LAYERS, f"flannelette-{name}")) for name in SERVICES}
    base = set(layers.pop("ctl"))
    shared = set.intersection(*map(set, layers.values())) - base
    assert len(shared) == 1
    for name in layers:
        assert int(run(name, "sh", "-c", "find / -xdev -name 'cygrpc*.so' | wc -l").stdout) == 1


@pytest.mark.parametrize("name", SERVICES)
def test_every_version_is_a_pinned_one(name: str) -> None:
    file = "constraints-cloud.txt" if name == "cloud" else "constraints.txt"
    text = ROOT.joinpath("deploy/images", file).read_text()
    pinned = {line.partition(" ")[0].lower() for line in text.splitlines() if not line.startswith("#")}
    found = run(name, "python3", "-c", LIST)
    installed = {line.lower() for line in found.stdout.split()}
    assert f"flannelette=={VERSION}" in installed, found.stderr
    assert installed - {f"flannelette=={VERSION}"} <= pinned


@pytest.mark.parametrize("name", SERVICES)
def test_its_labels_say_what_it_is(name: str) -> None:
    labels = config(name)["Labels"]
    title = "flannelette" if name == "ctl" else f"flannelette-{name}"
    assert labels["org.opencontainers.image.title"] == title
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"] == VERSION

    assert labels["org.opencontainers.image.created"].startswith("20")
    assert "org.opencontainers.image.base.name" in labels


@pytest.mark.parametrize("name", SERVICES)
def test_its_bill_of_materials_names_what_is_in_it(name: str) -> None:
    bill = json.loads(run(name, "cat", f"/opt/flannelette/share/sbom/flannelette-{name}.cdx.json").stdout)
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "flannelette")
    named = {f"{part['name']}=={part['version']}" for part in bill["components"]}
    found = run(name, "python3", "-c", LIST)
    assert named == set(found.stdout.split()) - {f"flannelette=={VERSION}"}


KUBECONFIG = """
import asyncio, json, tempfile, kubernetes, kubernetes.aio
from kubernetes.aio import client, config
users = [{"token": "t"}, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [
    '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}']}}]
for user in users:
    document = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": user}],
                "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    found = client.Configuration()
    load = config.load_kube_config_from_dict(document, client_configuration=found)
    asyncio.run(load)
    print(found.host, found.api_key["BearerToken"])
"""


@pytest.mark.parametrize("name", ["lease", "all"])
def test_the_rest_of_the_kubernetes_client_reads_kubeconfigs_of_every_kind(name: str) -> None:
    done = run(name, "python3", "-c", KUBECONFIG)
    assert (done.stdout, done.stderr) == ("https://192.0.2.1:6443 Bearer t\n" * 2, "")


CLIENTS = """
import boto3, importlib
for name in ("ec2", "sts", "sso", "sso-oidc", "signin"):
    print(boto3.client(name, region_name="eu-central-1").meta.endpoint_url)
for name in ("ali", "aws", "gce", "tencent"):
    importlib.import_module(f"flannelette.services.cloud.providers.{name}")
"""


def test_the_rest_of_the_sdks_is_what_routes_and_credentials_take() -> None:
    done = run("cloud", "python3", "-c", CLIENTS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "https://ec2.eu-central-1.amazonaws.com" in done.stdout.splitlines()


@pytest.mark.parametrize("name", SERVICES)
def test_only_those_with_capabilities_are_root(name: str) -> None:
    user = "0:10001" if name in ("dataplane", "masq", "all") else "10001:10001"
    assert config(name)["User"] == user


@pytest.mark.parametrize("name", ["lease", "dataplane", "masq", "cloud"])
def test_the_engine_asks_grpc_health_every_30_seconds(name: str) -> None:
    check = config(name)["Healthcheck"]
    assert check["Test"] == ["CMD", "flannelette-probe", name]
    assert check["Interval"] == 30 * 10**9
