"""The manifests and a real kube-apiserver: it accepts them, and they replace kube-flannel in place, and it them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.api_server import ApiServer, Document
from tests.kubernetes.manifests import (
    OVERLAYS,
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
from tests.patience import PATIENCE
from tests.tools import find_tool

EVERY_OVERLAY = sorted(path.name for path in OVERLAYS.iterdir())
NETWORK = '{"Network": "10.42.0.0/16", "Backend": {"Type": "host-gw"}}'
DAEMON_SET = "/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds"


def released() -> list[Document]:
    command = [find_tool("kubectl"), "kustomize", str(of_flannel("released"))]  # it warns of a label in an old way
    return parse(subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout)


def kube_flannel() -> str:
    """kube-flannel's released manifest, for a cluster whose pods live elsewhere than in ours."""
    documents = released()
    pick(documents, "ConfigMap")["data"]["net-conf.json"] = NETWORK
    return dump(documents)


@pytest.mark.parametrize("overlay", EVERY_OVERLAY)
def test_the_api_server_accepts_every_field_of_every_object(kubectl: Kubectl, overlay: str) -> None:
    text = run_tool("kubectl", "kustomize", str(OVERLAYS / overlay))
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)
    assert len(said.splitlines()) == len(render(overlay))
    assert all(line.endswith("(server dry run)") for line in said.splitlines())


def test_it_replaces_kube_flannel_in_place_and_keeps_the_networks_configuration(
    kubectl: Kubectl, kube: ApiServer
) -> None:
    kubectl("apply", "-f", "-", text=kube_flannel())
    before = kube.call("GET", DAEMON_SET)
    kubectl("apply", "-k", str(OVERLAYS / "in-place"))
    after = kube.call("GET", DAEMON_SET)
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "the same object: its pods are replaced one by one"
    pod = after["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["lease", "dataplane", "masq"]
    assert [container["name"] for container in pod["initContainers"]] == ["install-cni-plugin"]
    kept = kube.call("GET", "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg")
    assert kept["data"]["net-conf.json"] == NETWORK


def test_kube_flannel_replaces_it_in_place(kubectl: Kubectl, kube: ApiServer) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    kubectl("apply", "-f", "-", text=kube_flannel())
    pod = kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["kube-flannel"]
    assert [container["name"] for container in pod["initContainers"]] == ["install-cni-plugin", "install-cni"]
    assert pod.get("automountServiceAccountToken") is None
    assert [volume["name"] for volume in pod["volumes"]] == [each["name"] for each in pod_of(released())["volumes"]]


def test_the_cni_configuration_of_before_a_boot_is_removed_before_pods_are_made(tmp_path: Path) -> None:
    container = container_of(pod_of(render("per-node")), "install-cni-plugin")
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert mounts == {"/opt/cni/bin": False, "/run/flannel": True, "/etc/cni/net.d": False}
    for mount in mounts:
        (tmp_path / mount[1:]).mkdir(parents=True)
    (tmp_path / "flannel").write_text("the plugin")
    configuration, subnet = tmp_path / "etc/cni/net.d/10-flannel.conflist", tmp_path / "run/flannel/subnet.env"
    configuration.touch()
    subnet.touch()
    *shell, script = container["command"]
    start = [*shell, re.sub(r"(?<!\w)(?=/(?:opt|run|etc|flannel))", str(tmp_path), script)]
    subprocess.run(start, check=True)
    assert configuration.exists(), "a new pod on a node that forwards"
    assert (tmp_path / "opt/cni/bin/flannel").read_text() == "the plugin"
    subnet.unlink()
    subprocess.run(start, check=True)
    assert not configuration.exists()
    subprocess.run(start, check=True)


def test_a_component_installs_the_plugin_where_debians_containerd_looks(tmp_path: Path) -> None:
    pod = pod_of(render(with_component(tmp_path, "usr-lib-cni")))
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["cni-plugin"]["hostPath"] == {"path": "/usr/lib/cni", "type": "DirectoryOrCreate"}
    assert len(volumes) == len(pod_of(render("per-node"))["volumes"])


def test_the_service_account_may_read_nodes_patch_their_status_and_write_events_only(kubectl: Kubectl) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    account = "--as=system:serviceaccount:kube-flannel:flannel"
    said = kubectl("auth", "can-i", "--list", "--no-headers", account)
    resources = [line.split()[0] for line in said.splitlines() if not line.startswith(" ")]
    assert sorted(r for r in resources if not r.startswith("self")) == ["events", "nodes", "nodes/status", "pods"]
    for verb, resource in (("patch", "nodes"), ("delete", "nodes"), ("get", "secrets"), ("list", "events")):
        with pytest.raises(AssertionError, match="no"):
            kubectl("auth", "can-i", verb, resource, account)
