"""What each container of the manifests may do at most, and where its probes ask."""

import re
from ipaddress import ip_address
from typing import Any, Final

import pytest

from flannelette.services.runtime.process.version import version
from tests.kubernetes.api_server import Document
from tests.kubernetes.manifests import OVERLAYS, pick, render
from tests.paths import ROOT
from tests.services.command_lines import ON_A_NODE, parsed

PAGE: Final = ROOT / "docs" / "kubernetes.md"
CAPABILITIES: Final[dict[str, list[str]]] = {
    "install-cni-plugin": [],
    "lease": [],
    "dataplane": ["NET_ADMIN", "NET_RAW"],
    "masq": ["NET_ADMIN", "NET_RAW"],
    "flanneld": ["NET_ADMIN", "NET_RAW"],
}
"""`flanneld`: the three in one process, where the operator chooses that."""
SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
CERTIFICATES: Final = "/etc/flannelette/tls"
HOST_PATHS: Final[dict[str, set[str]]] = {
    "install-cni-plugin": {"/opt/cni/bin", "/etc/cni/net.d"},
    "lease": set(),
    "dataplane": {"/run/flannel", "/etc/cni/net.d", "/var/lib/flannelette"},
    "masq": {"/run/xtables.lock", "/var/lib/flannelette"},
}
HOST_PATHS["flanneld"] = HOST_PATHS["dataplane"] | HOST_PATHS["masq"]
READ_ONLY: Final[dict[str, set[str]]] = {
    "install-cni-plugin": {"/run/flannel"},
    "dataplane": {"/var/lib/cni"},
    "flanneld": {"/var/lib/cni"},
}

Pod = tuple[Document, dict[str, Any]]


def pods() -> list[Pod]:
    """Every container of every overlay, with its pod."""
    found = []
    for overlay in sorted(OVERLAYS.iterdir()):
        for document in render(overlay):
            if "template" in document.get("spec", {}):
                spec = document["spec"]["template"]["spec"]
                found += [(spec, each) for each in (*spec.get("initContainers", ()), *spec["containers"])]
    return found


@pytest.fixture(scope="module")
def containers() -> list[Pod]:
    return pods()


def test_no_container_may_do_more_than_its_list_says(containers: list[Pod]) -> None:
    for pod, container in containers:
        name, rights = container["name"], container["securityContext"]
        assert rights["capabilities"].get("add", []) == CAPABILITIES[name], name
        assert rights["capabilities"]["drop"] == ["ALL"], name
        assert rights["allowPrivilegeEscalation"] is False, name
        assert rights["readOnlyRootFilesystem"] is True, name
        assert not rights.get("privileged"), name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.get("hostPID")
        assert not pod.get("hostIPC")
        if name == "lease":
            assert (rights["runAsNonRoot"], rights["runAsUser"]) == (True, 10001)


def test_the_lease_container_has_the_sockets_of_no_other(containers: list[Pod]) -> None:
    for _, container in containers:
        mounted = {
            each["mountPath"]: each["name"]
            for each in container["volumeMounts"]
            if "flannelette" in each["mountPath"]
        }
        if container["name"] == "lease":
            assert "/run/flannelette" not in mounted
            assert mounted["/run/flannelette-lease"] == "lease-socket"
        elif container["name"] in ("dataplane", "masq"):
            assert (mounted["/run/flannelette"], mounted["/run/flannelette-lease"]) == ("sockets", "lease-socket")


def test_only_the_lease_container_has_a_token_and_only_who_needs_it_a_file_of_the_host(
    containers: list[Pod],
) -> None:
    for pod, container in containers:
        name = container["name"]
        assert pod["automountServiceAccountToken"] is False
        hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        written = {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")}
        assert {hosts[volume] for volume in written & hosts.keys()} == HOST_PATHS[name], name
        known = HOST_PATHS[name] | READ_ONLY.get(name, set()) | {CERTIFICATES}
        assert {hosts[volume] for volume in mounted & hosts.keys()} <= known, name
        has_token = SERVICE_ACCOUNT in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert has_token is (name in ("lease", "flanneld"))


def test_each_service_is_probed_on_loopback_where_its_flags_say(containers: list[Pod]) -> None:
    for pod, container in containers:
        if container["name"] not in ON_A_NODE:
            continue
        settings = settings_of(container)
        assert settings.healthz_ip == "127.0.0.1"
        for probe, path in (("startupProbe", "healthz"), ("livenessProbe", "healthz"), ("readinessProbe", "readyz")):
            get = {"host": "127.0.0.1", "path": f"/{path}", "port": settings.healthz_port}
            assert container[probe]["httpGet"] == get, (container["name"], probe)
        ports = [settings_of(each).healthz_port for each in pod["containers"]]
        assert len(set(ports)) == len(ports), "the pod has the host's network"


def test_a_container_that_hangs_is_killed_when_the_page_says(containers: list[Pod]) -> None:
    (first, last) = re.search(r"is killed after (\d+) to\s(\d+) s", PAGE.read_text()).groups()  # type: ignore[union-attr]
    for pod, container in containers:
        if container["name"] not in ON_A_NODE:
            continue
        alive = container["livenessProbe"]
        fails = alive["periodSeconds"] * (alive["failureThreshold"] - 1) + alive["timeoutSeconds"]
        killed = fails + pod["terminationGracePeriodSeconds"]
        assert int(first) <= killed <= killed + alive["periodSeconds"] <= int(last), container["name"]


def test_the_page_has_the_memory_that_the_manifests_request() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.* (\d+) \| (\d+) \|$", PAGE.read_text(), re.M)
    resources = {
        each["name"]: {kind: each["resources"][kind]["memory"] for kind in ("requests", "limits")}
        for each in pick(render("per-node"), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    }
    assert {name: {"requests": f"{low}Mi", "limits": f"{high}Mi"} for name, low, high in rows} == resources


def test_a_nodes_own_lease_service_and_a_central_one_can_be_on_one_node() -> None:
    ports = [
        {
            settings_of(each).healthz_port
            for each in pick(render(overlay), kind)["spec"]["template"]["spec"]["containers"]
        }
        for overlay, kind in (("per-node", "DaemonSet"), ("central", "Deployment"))
    ]
    assert not ports[0] & ports[1]


def test_exec_and_logs_without_a_container_take_the_dataplane() -> None:
    for overlay in sorted(OVERLAYS.iterdir()):
        template = pick(render(overlay), "DaemonSet")["spec"]["template"]
        default = "flanneld" if overlay.name == "one-process" else "dataplane"
        assert template["metadata"]["annotations"] == {"kubectl.kubernetes.io/default-container": default}
        assert default in {container["name"] for container in template["spec"]["containers"]}


def test_dataplane_and_masq_agree_on_masquerading(containers: list[Pod]) -> None:
    for _, container in containers:
        if container["name"] in ("dataplane", "masq"):
            assert "--ip-masq" in container["args"]


def test_the_images_are_of_this_version(containers: list[Pod]) -> None:
    ours = {container["image"] for _, container in containers if "flannelette" in container["image"]}
    assert ours == {f"flannelette-{name}:{version()}" for name in (*ON_A_NODE, "all")}


def test_a_node_of_the_central_overlay_holds_no_credentials_of_the_cluster() -> None:
    pod = pick(render("central"), "DaemonSet")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "default", "a kubelet may ask for tokens of its pods' account"
    assert [container["name"] for container in pod["containers"]] == ["dataplane", "masq"]
    assert not [volume for volume in pod["volumes"] if "projected" in volume or "secret" in volume]


def test_the_lease_service_of_the_central_overlay_needs_no_overlay_and_no_dns() -> None:
    documents = render("central")
    pod = pick(documents, "Deployment")["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True
    tolerated = {each["key"] for each in pod["tolerations"]}
    assert {"node.kubernetes.io/not-ready", "node.kubernetes.io/network-unavailable"} <= tolerated
    address = ip_address(pick(documents, "Service")["spec"]["clusterIP"])
    for container in pick(documents, "DaemonSet")["spec"]["template"]["spec"]["containers"]:
        (at,) = (v["value"] for v in container["env"] if v["name"] == "FLANNELD_LEASE_ADDRESS")
        assert at == f"{address}:7070"


def test_the_role_lets_the_lease_service_read_nodes_patch_their_status_and_write_events_and_nothing_else() -> None:
    rules = pick(render("per-node"), "ClusterRole")["rules"]
    assert {(resource, *rule["verbs"]) for rule in rules for resource in rule["resources"]} == {
        ("nodes", "get", "list", "watch"),
        ("nodes/status", "patch"),
        ("events", "create", "patch"),
        ("pods", "get"),
    }


def settings_of(container: dict[str, Any]) -> Any:
    """What the service makes of its arguments."""
    environment = {variable["name"]: variable.get("value", "n1") for variable in container.get("env", ())}
    return parsed(container["name"], container.get("args", []), environment)
