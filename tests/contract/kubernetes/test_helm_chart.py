"""The chart: the pods of the kustomize base, also from flannel's own values file."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.api_server import Document
from tests.kubernetes.manifests import (
    Kubectl,
    container_of,
    dump,
    of_flannel,
    parse,
    pick,
    pod_of,
    render,
    run_tool,
    with_component,
)
from tests.paths import ROOT
from tests.services.command_lines import ON_A_NODE, flags_of

CHART = ROOT / "deploy" / "helm" / "flannelette"
FLANNELS = ROOT / "tests" / "golden" / "helm" / "flannel-values.yaml"
WHERE = ("--namespace=kube-flannel", "--kube-version=1.34")


def helm(*arguments: str) -> list[Document]:
    """The objects of a release called flannel."""
    return parse(run_tool("helm", "template", "flannel", str(CHART), *WHERE, *arguments))


def network(documents: list[Document]) -> dict[str, Any]:
    """net-conf.json."""
    found: dict[str, Any] = json.loads(pick(documents, "ConfigMap")["data"]["net-conf.json"])
    return found


def arguments(documents: list[Document]) -> dict[str, list[str]]:
    """By service, without the ports for probes."""
    return {
        container["name"]: [each for each in container["args"] or () if not each.startswith("--healthz-")]
        for container in pod_of(documents)["containers"]
    }


def test_its_defaults_are_the_kustomize_base() -> None:
    chart, base = helm(), render("per-node")
    assert pod_of(chart) == pod_of(base)
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        for part in ("rules", "roleRef", "subjects"):
            assert pick(chart, kind).get(part) == pick(base, kind).get(part)
    assert network(chart) == json.loads(pick(base, "ConfigMap")["data"]["net-conf.json"])
    assert pick(chart, "ConfigMap")["data"]["cni-conf.json"] == pick(base, "ConfigMap")["data"]["cni-conf.json"]
    assert {d["kind"] for d in base} - {d["kind"] for d in chart} == {"Namespace"}
    assert {(d["kind"], d["metadata"]["name"]) for d in chart} <= {(d["kind"], d["metadata"]["name"]) for d in base}


def test_one_process_is_the_overlay_of_that_name() -> None:
    one = "--set=flannelette.process=one"
    assert pod_of(helm(one)) == pod_of(render("one-process"))
    (container,) = pod_of(helm(one))["containers"]
    assert (container["name"], container["image"].partition(":")[0]) == ("flanneld", "flannelette-all")
    with pytest.raises(AssertionError, match=r"with flannelette\.central\.enabled no lease service is on a node"):
        helm(one, "--set=flannelette.central.enabled=true")


def test_flannels_values_file_is_taken_as_it_is() -> None:
    documents = helm(f"--values={FLANNELS}")
    assert network(documents) == {
        "Network": "10.42.0.0/16",
        "IPv6Network": "fd00:42::/48",
        "EnableIPv6": True,
        "EnableNFTables": True,
        "Backend": {
            "Type": "vxlan",
            "Port": 4789,
            "VNI": 4096,
            "GBP": True,
            "DirectRouting": True,
            "MTU": 1400,
            "MacPrefix": "0E-2A",
        },
    }
    assert arguments(documents) == {
        "lease": ["--kube-subnet-mgr", "-v=1"],
        "dataplane": [
            "--ip-masq",
            "--iface",
            "eth1",
            "--iface-regex=^10\\.",
            "-v=1",
            "--cni-install-path=/etc/cni/net.d/10-flannel.conflist",
        ],
        "masq": ["--ip-masq", "--ip-masq-fully-random-disable=true", "-v=1"],
    }
    pod = pod_of(documents)
    ports = [container["readinessProbe"]["httpGet"]["port"] for container in pod["containers"]]
    assert ports == [8081, 8082, 8083]
    liveness = container_of(pod, "masq")["livenessProbe"]
    assert (liveness["initialDelaySeconds"], liveness["periodSeconds"], liveness["failureThreshold"]) == (10, 30, 3)
    assert all("flannelette-" in container["image"] for container in pod["containers"])
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert (paths["cni-plugin"], paths["cni"]) == ("/usr/libexec/cni", "/etc/kubernetes/cni/net.d")
    assert pod["nodeSelector"] == {"node-role.example.org/pods": "true"}
    assert pod["imagePullSecrets"] == [{"name": "a-secret-name"}]


def test_flannels_values_file_as_released_gives_the_pods_of_its_chart() -> None:
    """Its ports for probes, and all else the base's."""
    documents = helm(f"--values={of_flannel('values.yaml')}")
    released = parse(run_tool("helm", "template", "flannel", str(of_flannel(".")), *WHERE))
    assert network(documents) == {"EnableNFTables": False, **network(released)}
    assert pick(documents, "ConfigMap")["data"] == {
        **pick(released, "ConfigMap")["data"],
        **pick(documents, "ConfigMap")["data"],
    }
    ours, theirs = pod_of(documents), pod_of(released)
    assert container_of(ours, "install-cni-plugin")["image"] == container_of(theirs, "install-cni-plugin")["image"]
    assert container_of(ours, "lease")["livenessProbe"]["httpGet"]["port"] == 8081
    assert sorted(map(str, ours["tolerations"])) == sorted(map(str, theirs["tolerations"]))
    assert "kube-network-policies" not in str(documents)


def test_network_policies_are_enforced_by_the_program_that_flannels_chart_takes() -> None:
    settings = ("--set=netpol.enabled=true", f"--values={of_flannel('values.yaml')}")
    documents = helm(*settings)
    released = parse(run_tool("helm", "template", "flannel", str(of_flannel(".")), *WHERE, *settings))
    ours, theirs = (container_of(pod_of(each), "kube-network-policies") for each in (documents, released))
    for key in ("image", "command", "env", "resources"):
        assert ours[key] == theirs[key]
    assert ours["securityContext"]["privileged"] is True
    assert {"mountPath": "/lib/modules", "name": "lib-modules", "readOnly": True} in ours["volumeMounts"]
    assert any(mount["name"] == "token" for mount in ours["volumeMounts"]), "the pod's other containers have none"
    assert allowed(released) <= allowed(documents)


def allowed(documents: list[Document]) -> set[tuple[str, str, str]]:
    """Group, resource and verb of what the service account may do."""
    return {
        each
        for rule in pick(documents, "ClusterRole")["rules"]
        for each in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def test_central_lease_services_are_those_of_the_kustomize_overlay() -> None:
    chart, overlay = helm("--set=flannelette.central.enabled=true"), render("central")
    assert in_order(pod_of(chart)) == in_order(pod_of(overlay))
    assert in_order(pod_of(chart, "Deployment")) == in_order(pod_of(overlay, "Deployment"))
    for kind in ("Service", "PodDisruptionBudget"):
        assert pick(chart, kind)["spec"] == pick(overlay, kind)["spec"]
    ours, theirs = (pick(each, "Deployment")["spec"] for each in (chart, overlay))
    assert {**ours, "template": None} == {**theirs, "template": None}
    for container in pod_of(chart)["containers"]:
        assert container["env"][0]["name"] == "NODE_NAME", "the others name it"
    assert {d["kind"] for d in overlay} - {d["kind"] for d in chart} == {"Namespace"}


def in_order(pod: Document) -> Document:
    """What has names, by its name."""
    sorted_by_name: Document = json.loads(json.dumps(pod))
    for each in (sorted_by_name, *sorted_by_name["containers"]):
        for key in each.keys() & {"volumes", "volumeMounts", "env"}:
            each[key].sort(key=lambda named: named["name"])
    return sorted_by_name


@pytest.mark.parametrize(("central", "kind"), [("false", "DaemonSet"), ("true", "Deployment")])
def test_other_clusters_are_the_business_of_the_lease_service_alone(central: str, kind: str) -> None:
    west = "west=192.0.2.7:7070,allow=10.245.0.0/16,cert=/etc/flannelette/clusters/tls.crt"
    values = {"imports": [west], "exports": ["10.244.0.0/17", "none"], "secret": "from-west"}
    documents = helm(
        f"--set=flannelette.central.enabled={central}", f"--set-json=flannelette.clusters={json.dumps(values)}"
    )
    lease = container_of(pod_of(documents, kind), "lease")
    told = [each for each in lease["args"] if each.startswith(("--import", "--export"))]
    assert told == [f"--import={west}", "--export=10.244.0.0/17", "--export=none"]
    mounts = {each["name"]: each["mountPath"] for each in lease["volumeMounts"]}
    assert mounts["clusters"] == "/etc/flannelette/clusters"
    volumes = {each["name"]: each for each in pod_of(documents, kind)["volumes"]}
    assert volumes["clusters"]["secret"]["secretName"] == "from-west"
    assert yaml.safe_dump_all(documents).count("from-west") == 1


def test_an_address_and_a_secret_of_ones_own_are_everywhere() -> None:
    central = "flannelette.central"
    own = (f"--set={central}.enabled=true", f"--set={central}.clusterIP=10.43.0.70", f"--set={central}.secret=mine")
    text = yaml.safe_dump_all(helm(*own))
    assert (text.count("10.43.0.70"), text.count("10.96.0.70")) == (3, 0)
    assert "secretName: mine" in text


def test_an_ipv6_address_of_central_lease_services_is_in_brackets_where_its_port_follows() -> None:
    documents = helm("--set=flannelette.central.enabled=true", "--set=flannelette.central.clusterIP=fd00:10:96::70")
    assert pick(documents, "Service")["spec"]["clusterIP"] == "fd00:10:96::70"
    for name in ("dataplane", "masq"):
        environment = {each["name"]: each.get("value") for each in container_of(pod_of(documents), name)["env"]}
        assert environment["FLANNELD_LEASE_ADDRESS"] == "[fd00:10:96::70]:7070"


def test_labels_and_annotations_go_where_flannels_chart_puts_them_and_the_most_special_wins() -> None:
    documents = helm(f"--values={FLANNELS}")
    special = {d["kind"]: d["metadata"]["labels"]["most-special"] for d in documents}
    assert special == {
        "ServiceAccount": "common",
        "ConfigMap": "common",
        "ClusterRole": "cluster-role",
        "ClusterRoleBinding": "rbac",
        "DaemonSet": "daemon-set",
    }
    assert all(d["metadata"]["labels"]["everywhere"] == "common" for d in documents)
    assert all(d["metadata"]["annotations"]["everywhere"] == "common" for d in documents)
    daemon_set = pick(documents, "DaemonSet")
    template = daemon_set["spec"]["template"]["metadata"]
    assert template["labels"].items() >= {"team": "network", **daemon_set["spec"]["selector"]["matchLabels"]}.items()
    assert template["annotations"]["example.org/note"] == "pod"
    assert daemon_set["metadata"]["annotations"]["example.org/note"] == "daemon-set"


@pytest.mark.parametrize(
    ("values", "backend"),
    [
        ({"backend": "host-gw", "vni": 5}, {"Type": "host-gw"}),
        (
            {"backend": "wireguard", "backendPort": 51999, "backendPortv6": 51998, "psk": "secret", "mtu": 1380,
             "tunnelMode": "auto", "keepaliveInterval": 25},
            {"Type": "wireguard", "ListenPort": 51999, "ListenPortV6": 51998, "PSK": "secret", "MTU": 1380,
             "Mode": "auto", "PersistentKeepaliveInterval": 25},
        ),
        ({"backend": "udp", "backendPort": 8285}, {"Type": "udp", "Port": 8285}),
        ({"backend": "ipsec", "psk": "secret", "mtu": 1380}, {"Type": "ipsec", "PSK": "secret"}),
        ({"vni": 16777215}, {"Type": "vxlan", "VNI": 16777215}),
        ({"vni": 0, "mtu": 0}, {"Type": "vxlan", "VNI": 0}),
        ({"vni": None}, {"Type": "vxlan"}),
    ],
)  # fmt: skip
def test_the_options_of_a_backend_are_its_own(
    tmp_path: Path, values: dict[str, Any], backend: dict[str, Any]
) -> None:
    (tmp_path / "values.yaml").write_text(
        yaml.safe_dump({"podCidr": "", "podCidrv6": "fd00:42::/48", "flannel": values})
    )
    found = network(helm(f"--values={tmp_path}/values.yaml"))
    assert found["Backend"] == backend
    assert found["EnableIPv4"] is False


def test_charon_is_beside_the_dataplane_with_ipsec_alone_as_the_component_has_it(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    own = ("--set=flannel.backend=ipsec", f"--set=flannel.psk={'0123456789abcdef' * 6}")
    assert "charon" not in dump(helm())
    assert "charon" not in dump(helm(*own, "--set=flannelette.charon.enabled=false"))
    documents = helm(*own)
    pod = pod_of(documents)
    charon = container_of(pod, "charon")
    assert "--charon-socket=/run/flannelette/charon.vici" in container_of(pod, "dataplane")["args"]
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=dump(documents))
    assert [line.endswith("(server dry run)") for line in said.splitlines()] == [True] * len(documents)

    rendered = render(with_component(tmp_path, "ipsec"))
    assert charon == container_of(pod_of(rendered), "charon")
    assert {v["name"] for v in pod["volumes"]} == {v["name"] for v in pod_of(rendered)["volumes"]}
    variables = {each["name"]: each.get("value") for each in container_of(pod_of(rendered), "dataplane")["env"]}
    assert variables["FLANNELD_CHARON_SOCKET"] == "/run/flannelette/charon.vici"
    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=dump(rendered))


def test_what_can_be_left_out_is_left_out() -> None:
    pod = pod_of(helm("--set=flannel.skipCNIConfigInstallation=true", "--set=flannel.healthz.port=0"))
    assert not [v for v in pod["volumes"] if v["name"] == "cni"]
    for container in pod["containers"]:
        assert not {"startupProbe", "livenessProbe", "readinessProbe"} & container.keys()
        assert not [a for a in container["args"] or () if a.startswith(("--healthz", "--cni-install"))]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("flannel.args={--ip-masq,--nonsense}", "no service takes --nonsense here"),
        ("flannel.args={--healthz-port=1}", "ports for probes: flannel.healthz.port"),
        ("flannel.args={word}", '"word" is not a flag'),
        ("netpol.enabled=true,flannelette.central.enabled=true", "needs a token in each node's pod"),
        ("flannelette.clusters.imports={west=h:1}", "imports"),
        ("flannel.cniConf=cbr0", "flannel.cniConf: not the JSON of an object"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        helm(f"--set={setting}")


def test_its_table_of_flags_is_that_of_the_services() -> None:
    table = {
        name: words.split() for name, words in yaml.safe_load((CHART / "files" / "flags.yaml").read_text()).items()
    }
    booleans, known = set(), set()
    for service in ON_A_NODE:
        flags = flags_of(service)
        assert set(table[service]) == flags.keys() - OUR_OWN, service
        known |= set(table[service])
        booleans |= {name for name, kind in flags.items() if kind is bool}
    assert set(table["booleans"]) == booleans & known


OUR_OWN = frozenset(
    "central cni-install-path dangerously-without-tls export healthz-ip healthz-port import lease-address listen "
    "network network-namespace-file node socket-dir state-dir tls-ca-file tls-cert-file tls-key-file tls-server-name "
    "version".split()
)
"""What the chart sets itself, or a pod on every node has no use for; other clusters are values of it."""
