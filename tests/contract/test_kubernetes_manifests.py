"""The manifests and a real kube-apiserver: it accepts them, and they replace kube-flannel in place, and it them."""

import json

import pytest

from tests.kube import ApiServer, Document
from tests.manifests import OVERLAYS, Kubectl, dump, pick, render, run_tool

EVERY_OVERLAY = sorted(path.name for path in OVERLAYS.iterdir())
DAEMON_SET = "/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds"


def kube_flannel(selector: dict[str, str]) -> list[Document]:
    """What of kube-flannel's manifest there is to replace: its names, its containers, its volumes."""
    documents = render("per-node")
    daemon_set = json.loads(json.dumps(pick(documents, "DaemonSet")))
    daemon_set["spec"]["selector"]["matchLabels"] = selector
    image = "ghcr.io/flannel-io/flannel:v0.28.9"
    run, config = (
        {"name": "run", "mountPath": "/run/flannel"},
        {"name": "flannel-cfg", "mountPath": "/etc/kube-flannel/"},
    )
    daemon_set["spec"]["template"] = {
        "metadata": {"labels": {"tier": "node", "app": "flannel", **selector}},
        "spec": {
            "hostNetwork": True,
            "serviceAccountName": "flannel",
            "initContainers": [
                {"name": "install-cni-plugin", "image": "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel2"},
                {"name": "install-cni", "image": image, "volumeMounts": [config]},
            ],
            "containers": [
                {
                    "name": "kube-flannel",
                    "image": image,
                    "command": ["/opt/bin/flanneld"],
                    "args": ["--ip-masq", "--kube-subnet-mgr"],
                    "volumeMounts": [run, config],
                }
            ],
            "volumes": [
                {"name": "run", "hostPath": {"path": "/run/flannel"}},
                {"name": "flannel-cfg", "configMap": {"name": "kube-flannel-cfg"}},
            ],
        },
    }
    config_map = json.loads(json.dumps(pick(documents, "ConfigMap")))
    config_map["data"]["net-conf.json"] = '{"Network": "10.42.0.0/16", "Backend": {"Type": "host-gw"}}'
    return [daemon_set, config_map, *(d for d in documents if d["kind"] not in ("DaemonSet", "ConfigMap"))]


RELEASED = {"app": "flannel", "k8s-app": "flannel"}


@pytest.mark.parametrize("overlay", EVERY_OVERLAY)
def test_the_api_server_accepts_every_field_of_every_object(kubectl: Kubectl, overlay: str) -> None:
    text = run_tool("kubectl", "kustomize", str(OVERLAYS / overlay))
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)
    assert len(said.splitlines()) == len(render(overlay))
    assert all(line.endswith("(server dry run)") for line in said.splitlines())


def test_it_replaces_kube_flannel_in_place_and_keeps_the_networks_configuration(
    kubectl: Kubectl, kube: ApiServer
) -> None:
    kubectl("apply", "-f", "-", text=dump(kube_flannel(RELEASED)))
    before = kube.call("GET", DAEMON_SET)
    kubectl("apply", "-k", str(OVERLAYS / "in-place"))
    after = kube.call("GET", DAEMON_SET)
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "the same object: its pods are replaced one by one"
    pod = after["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["lease", "dataplane", "masq"]
    assert [container["name"] for container in pod["initContainers"]] == ["install-cni-plugin"]
    kept = kube.call("GET", "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg")
    assert "10.42.0.0/16" in kept["data"]["net-conf.json"]


def test_kube_flannel_replaces_it_in_place(kubectl: Kubectl, kube: ApiServer) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    kubectl("apply", "-f", "-", text=dump(kube_flannel(RELEASED)))
    pod = kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["kube-flannel"]
    assert [container["name"] for container in pod["initContainers"]] == ["install-cni-plugin", "install-cni"]
    assert pod.get("automountServiceAccountToken") is None
    assert [volume["name"] for volume in pod["volumes"]] == ["run", "flannel-cfg"]


def test_the_service_account_may_read_nodes_and_patch_their_status_only(kubectl: Kubectl) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    account = "--as=system:serviceaccount:kube-flannel:flannel"
    said = kubectl("auth", "can-i", "--list", "--no-headers", account)
    resources = [line.split()[0] for line in said.splitlines() if not line.startswith(" ")]
    assert sorted(r for r in resources if not r.startswith("self")) == ["nodes", "nodes/status", "pods"]
    for verb, resource in (("patch", "nodes"), ("delete", "nodes"), ("get", "secrets"), ("update", "nodes/status")):
        with pytest.raises(AssertionError, match="no"):
            kubectl("auth", "can-i", verb, resource, account)
