"""Values of the chart: a backend gets the options that comments promise it, and what a value changes are the pods."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flannelette.services.core.backend_types import BACKEND_TYPES, Option, VxlanOptions, declared_options
from flannelette.services.core.network import NetworkConfig, parse_network
from tests.kubernetes.api_server import Document
from tests.kubernetes.manifests import parse, pick, pod_of, run_tool
from tests.pages.chart import CHART, values

OPTIONS: dict[str, Any] = {
    "backendPort": 4001,
    "mtu": 1401,
    "vni": 41,
    "GBP": True,
    "directRouting": True,
    "macPrefix": "0E-4A",
    "psk": "secret",
    "tunnelMode": "ipv4",
    "backendPortv6": 4002,
    "keepaliveInterval": 42,
}


@pytest.mark.parametrize("backend", sorted(BACKEND_TYPES))
def test_a_backend_gets_the_options_whose_comment_names_it_and_no_other(backend: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"flannel": OPTIONS | {"backend": backend}}))
    documents = parse(run_tool("helm", "template", "flannel", str(CHART), f"--values={tmp_path}/values.yaml"))
    network = json.loads(pick(documents, "ConfigMap")["data"]["net-conf.json"])
    meanings = {value.path.removeprefix("flannel."): value.meaning for value in values()}
    promised = [OPTIONS[name] for name in OPTIONS if backend in re.findall(r"[\w-]+", meanings[name])]
    got = network["Backend"]
    assert got.pop("Type") == backend
    assert sorted(map(str, got.values())) == sorted(map(str, promised))


KEYS: dict[str, str] = {"wireguard": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "ipsec": "0123456789abcdef" * 6}


def example(backend: str, option: Option) -> Any:
    """A value that is not the default."""
    if option.name == "PSK":
        return KEYS[backend]
    if isinstance(option.default, bool):
        return not option.default
    if isinstance(option.default, int):
        return option.most - (option.name == "ListenPort")
    if isinstance(option.default, tuple):
        return ["rtb-1", "rtb-2"]
    return option.choices[1] if option.choices else "aes256-sha256"


def network_of(tmp_path: Path, **flannel: Any) -> NetworkConfig:
    """What the services of a release with these values read."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"flannel": flannel}))
    documents = parse(run_tool("helm", "template", "flannel", str(CHART), f"--values={tmp_path}/values.yaml"))
    return parse_network(pick(documents, "ConfigMap")["data"]["net-conf.json"], leases_subnets=False)


@pytest.mark.parametrize("backend", sorted(BACKEND_TYPES))
def test_every_option_of_every_backend_is_passed_as_it_is(backend: str, tmp_path: Path) -> None:
    declared = declared_options(BACKEND_TYPES[backend])
    given = {option.name: example(backend, option) for option in declared.values()}
    options = network_of(tmp_path, backend=backend, backendOptions=given).options
    for name, option in declared.items():
        found = getattr(options, name)
        assert found not in (option.default, getattr(BACKEND_TYPES[backend](), name)), option.name
        if not isinstance(found, bytes):
            assert found == (tuple(given[option.name]) if isinstance(found, tuple) else given[option.name])


@pytest.mark.parametrize("backend", sorted(BACKEND_TYPES))
def test_a_value_that_an_option_cannot_have_is_refused_by_its_name(backend: str, tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"Nonsense": 1}
    for option in declared_options(BACKEND_TYPES[backend]).values():
        is_number = isinstance(option.default, int) and not isinstance(option.default, bool)
        wrong[option.name] = option.most + 1 if is_number else 8472
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema") as refused:
        network_of(tmp_path, backend=backend, backendOptions=wrong)
    for name in wrong:
        assert re.search(rf"backendOptions[./]?.*\b{name}\b", str(refused.value)), (name, str(refused.value))


def test_an_option_wins_over_the_value_of_flannels_chart_also_with_the_value_that_means_nothing_there(
    tmp_path: Path,
) -> None:
    own = {"VNI": 0, "DirectRouting": False, "MacPrefix": "0E-2B"}
    network = network_of(tmp_path, vni=7, directRouting=True, backendPort=4789, backendOptions=own)
    assert network.options == VxlanOptions(vni=0, port=4789)
    assert json.loads(network.source)["Backend"]["MacPrefix"] == "0E-2B"
    assert network.warnings == ()
    assert network_of(tmp_path, backendOptions=None).options == VxlanOptions()


def chart(*settings: str) -> list[Document]:
    """The objects of a release with all that it can have, and these values."""
    everything = "flannelette.central.enabled=true,flannelette.cloud.enabled=true"
    given = (f"--set={each}" for each in (everything, *settings))
    return parse(run_tool("helm", "template", "flannel", str(CHART), *given))


def templates(documents: list[Document]) -> dict[str, Document]:
    """Of pods, by what makes them."""
    made = (each for each in documents if each["kind"] in ("DaemonSet", "Deployment"))
    return {each["metadata"]["name"]: each["spec"]["template"] for each in made}


@pytest.mark.parametrize(
    ("setting", "replaced"),
    [
        ("podCidr=10.42.0.0/16", {"kube-flannel-ds", "flannelette-lease", "flannelette-cloud"}),
        ("flannel.backend=host-gw", {"kube-flannel-ds", "flannelette-lease", "flannelette-cloud"}),
        ("flannel.vni=7", {"kube-flannel-ds", "flannelette-lease", "flannelette-cloud"}),
        (r"flannel.cniConf=\{\}", {"kube-flannel-ds"}),
        ("flannel.configMap.labels.a=b", set()),
    ],
)
def test_pods_are_replaced_when_the_files_change_that_they_have_of_the_config_map(
    setting: str, replaced: set[str]
) -> None:
    before, after = templates(chart()), templates(chart(setting))
    assert before.keys() == after.keys() == {"kube-flannel-ds", "flannelette-lease", "flannelette-cloud"}
    assert {name for name in before if before[name] != after[name]} == replaced


@pytest.mark.parametrize(
    ("address", "probed"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("::1", "::1")],  # noqa: S104 - nothing is bound
)
def test_probes_go_where_the_services_listen(address: str, probed: str) -> None:
    containers = [
        container
        for pod in templates(chart(f"flannelette.healthzIP={address}")).values()
        for container in pod["spec"]["containers"]
    ]
    for container in containers:
        assert {"name": "FLANNELD_HEALTHZ_IP", "value": address} in container["env"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["host"] == probed
    assert len(containers) == 5


DISPENSABLE = """
flannelette.charon flannelette.resources.charon flannelette.cloud.secret flannelette.cloud.serviceAccount
flannelette.central.certManager flannelette.central.resources flannelette.clusters flannelette.selector
flannelette.updateStrategy flannel.args flannel.healthz.livenessProbe flannel.healthz.readinessProbe
flannel.tolerations flannel.nodeSelector flannel.podLabels flannel.daemonSet flannel.configMap flannel.rbac
flannel.serviceAccount global.commonLabels global.imagePullSecrets netpol.enabled
""".split()
"""Values without which there are pods, as where all lines below a key are comments."""
NEEDED = """
flannelette.image flannelette.resources flannelette.healthzIP global flannel.cniConf flannel.healthz netpol
""".split()


def test_a_key_without_a_value_is_as_good_as_none() -> None:
    pod = pod_of(chart("flannel.backend=ipsec", *(f"{key}=null" for key in DISPENSABLE)))
    assert [each["name"] for each in pod["containers"]] == ["dataplane", "masq", "charon"]


def test_where_the_chart_needs_a_value_it_names_the_key() -> None:
    with pytest.raises(AssertionError) as refused:
        chart(*(f"{key}=null" for key in NEEDED))
    named = re.findall(r"at '([^']*)': missing propert\w+ ([^\n]+)", str(refused.value))
    found = {f"{where}/{key}" for where, keys in named for key in re.findall(r"'([^']+)'", keys)}
    assert found == {"/" + key.replace(".", "/") for key in NEEDED}
