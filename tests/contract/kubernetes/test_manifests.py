"""The manifests and a real kube-apiserver: it accepts them, and they replace kube-flannel in place, and it them."""

import subprocess

import pytest

from tests.kubernetes.api_server import ApiServer, Document
from tests.kubernetes.manifests import OVERLAYS, Kubectl, dump, of_flannel, parse, pick, pod_of, render, run_tool
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


def test_the_service_account_may_read_nodes_and_patch_their_status_only(kubectl: Kubectl) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    account = "--as=system:serviceaccount:kube-flannel:flannel"
    said = kubectl("auth", "can-i", "--list", "--no-headers", account)
    resources = [line.split()[0] for line in said.splitlines() if not line.startswith(" ")]
    assert sorted(r for r in resources if not r.startswith("self")) == ["nodes", "nodes/status", "pods"]
    for verb, resource in (("patch", "nodes"), ("delete", "nodes"), ("get", "secrets"), ("update", "nodes/status")):
        with pytest.raises(AssertionError, match="no"):
            kubectl("auth", "can-i", verb, resource, account)
