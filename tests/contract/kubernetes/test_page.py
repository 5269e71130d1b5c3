"""docs/kubernetes.md: its commands, typed into a copy of deploy/, at a real API server."""

import json
import os
import re
import shutil
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from cryptography import x509

from flannelette.services.runtime.process.version import VERSION
from tests.kubernetes.api_server import ApiServer, Document
from tests.kubernetes.manifests import Kubectl, container_of, dump, pick, pod_of, render, run_tool
from tests.pages.document import sections
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.services.certificates import Certificates
from tests.tools import find_tool

PAGE = sections(ROOT / "docs" / "kubernetes.md")
PODS = "/api/v1/namespaces/kube-flannel/pods"
_KUBELETS = ("kubectl exec", "kubectl logs")
"""Commands that a kubelet would answer."""


def read(title: str, home: Path, kube: ApiServer) -> None:
    """Types the commands of one section."""
    place = home / "tree"
    place.mkdir(exist_ok=True)
    shutil.copytree(ROOT / "deploy", place / "deploy")
    programs = {str(Path(find_tool(name)).parent) for name in ("kubectl", "helm")}
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "KUBECONFIG": str(kube.kubeconfig()),
        "HOME": str(home),
    }
    (section,) = (each for each in PAGE if each.title == title)
    commands = "\n".join(block.commands for block in section.blocks if not block.commands.startswith(_KUBELETS))
    commands = commands.replace(".venv/bin/flannelette", f"{sys.executable} -m flannelette.services.ctl.main")
    typed = ["sh", "-euc", commands]
    done = subprocess.run(
        typed, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=2 * PATIENCE
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"


def daemon_set(kube: ApiServer) -> Document:
    return kube.call("GET", "/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds")


def test_every_section_with_commands_is_read_here() -> None:
    assert [section.title for section in PAGE] == [
        "An overlay of your own",
        "A new cluster",
        "kubeadm, k3s and kind",
        "In the place of kube-flannel",
        "One node first",
        "With helm",
        "From the manifests to the chart and back",
        "Large clusters",
        "Certificates by cert-manager",
        "Pods of another cluster",
        "A cloud's routes",
        "To central lease services and back",
        "Another network configuration",
        "Look inside",
    ]


@pytest.mark.usefixtures("kubectl")
def test_an_overlay_of_your_own_sets_images_and_flags(tmp_path: Path, kube: ApiServer, kubectl: Kubectl) -> None:
    read("An overlay of your own", tmp_path, kube)
    kubectl("apply", "-k", str(tmp_path / "tree/deploy/kubernetes/overlays/mine"))
    container = container_of(pod_of([daemon_set(kube)]), "dataplane")
    assert container["image"] == f"registry.example.org/flannelette-dataplane:{VERSION}"
    assert {v["name"]: v.get("value") for v in container["env"]}.items() >= {
        "FLANNELD_IFACE": "eth1",
        "FLANNELD_HEALTHZ_IP": "127.0.0.1",
    }.items()


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("title", ["A new cluster", "With helm"])
def test_a_cluster_gets_three_services(title: str, tmp_path: Path, kube: ApiServer) -> None:
    read(title, tmp_path, kube)
    assert [each["name"] for each in pod_of([daemon_set(kube)])["containers"]] == ["lease", "dataplane", "masq"]


def test_helm_takes_the_manifests_over_and_gives_them_back(tmp_path: Path, kube: ApiServer, kubectl: Kubectl) -> None:
    kubectl("apply", "-k", str(ROOT / "deploy/kubernetes/overlays/per-node"))
    before = pod_of([daemon_set(kube)])
    read("From the manifests to the chart and back", tmp_path, kube)
    assert pod_of([daemon_set(kube)]) == before
    assert kubectl("get", "secret", "--namespace=kube-flannel", "--output=name") == ""


@pytest.mark.usefixtures("kubectl")
def test_another_distribution_has_its_pod_network(tmp_path: Path, kube: ApiServer) -> None:
    read("kubeadm, k3s and kind", tmp_path, kube)
    found = kube.call("GET", "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg")["data"]
    assert json.loads(found["net-conf.json"])["Network"] == "10.42.0.0/16"
    assert found.keys() == {"net-conf.json", "cni-conf.json"}


def test_what_the_page_says_of_distributions_is_true_of_the_manifests() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.M)
    table = {name: dict(zip(("kubeadm", "k3s", "kind"), cells, strict=True)) for name, *cells in rows}
    documents = render("central")
    configuration = pick(documents, "ConfigMap")["data"]
    network = json.loads(configuration["net-conf.json"])["Network"]
    address = pick(documents, "Service")["spec"]["clusterIP"]
    volumes = {each["name"]: each for each in pod_of(documents)["volumes"]}
    assert volumes["cni-plugin"]["hostPath"]["path"] == "/opt/cni/bin"
    for name in ("kubeadm", "kind"):
        assert network in table["pod network"][name]
        assert re.findall(r"[\d./]+\d", table["address of central lease services"][name])[0] == address
    for name in ("kubeadm", "k3s", "kind"):
        (service_range,) = re.findall(r"[\d.]+/\d+", table["address of central lease services"][name])
        (chosen,) = re.findall(r"[\d.]+\.70", table["address of central lease services"][name])
        assert ip_address(chosen) in ip_network(service_range)
        assert "`/opt/cni/bin`" in table["plugins"][name]
    assert network not in table["pod network"]["k3s"]


@pytest.mark.usefixtures("kubectl")
def test_the_way_back_from_kube_flannels_place_has_a_pod_with_the_rights_it_needs(
    tmp_path: Path, kube: ApiServer
) -> None:
    kube.make_node("n1", "10.244.1.0/24")
    read("In the place of kube-flannel", tmp_path, kube)
    (pod,) = kube.call("GET", "/api/v1/namespaces/default/pods")["items"]
    kube.call("DELETE", f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}?gracePeriodSeconds=0")
    assert pod["metadata"]["deletionTimestamp"], "the page removes it"
    assert pod["spec"]["hostNetwork"] is True
    assert "NET_ADMIN" in pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"]


@pytest.mark.usefixtures("kubectl")
def test_a_large_cluster_gets_central_lease_services(tmp_path: Path, kube: ApiServer) -> None:
    read("Large clusters", tmp_path, kube)
    assert [each["name"] for each in pod_of([daemon_set(kube)])["containers"]] == ["dataplane", "masq"]
    secret = kube.call("GET", "/api/v1/namespaces/kube-flannel/secrets/flannelette-lease")
    assert secret["data"].keys() == {"tls.crt", "tls.key", "ca.crt"}
    text = run_tool("kubectl", "kustomize", str(tmp_path / "tree/deploy/kubernetes/overlays/mine"))
    assert (text.count("10.43.0.70"), text.count("10.96.0.70")) == (3, 0), "the Service, and two containers"


def cert_managers(kind: str) -> Document:
    """The definition of a kind of cert-manager's, without its fields."""
    plural, group = f"{kind.lower()}s", "cert-manager.io"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def test_an_authority_of_cert_managers_signs_for_nodes(tmp_path: Path, kube: ApiServer, kubectl: Kubectl) -> None:
    definitions = [cert_managers(kind) for kind in ("Certificate", "Issuer")]
    names = [f"customresourcedefinition/{each['metadata']['name']}" for each in definitions]
    kubectl("apply", "-f", "-", text=dump(definitions))
    kubectl("wait", "--for=condition=Established", *names)
    Certificates(tmp_path)
    pair = (f"--cert={tmp_path}/ca.crt", f"--key={tmp_path}/ca.key")
    kubectl("create", "secret", "tls", "flannelette-ca", "--namespace=kube-flannel", *pair)
    try:
        read("Certificates by cert-manager", tmp_path, kube)
        theirs = ("get", "certificates,issuers,secrets", "--namespace=kube-flannel", "--output=name")
        kept = kubectl(*theirs).split()
        (removal,) = re.findall(r"`kubectl (delete [^`]*issuer/[^`]+)`", (ROOT / "docs/kubernetes.md").read_text())
        kubectl(*removal.split())
        assert kubectl(*theirs) == ""
    finally:
        kubectl("delete", *names)
    assert [each.partition("/")[2] for each in kept] == [
        "flannelette-ca",
        "flannelette-lease",
        "flannelette-ca",
        "flannelette-self-signed",
        "flannelette-ca",
    ]
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    for service in ("dataplane", "masq"):
        file = tmp_path / f"tree/tls/n1-{service}.crt"
        x509.load_pem_x509_certificate(file.read_bytes()).verify_directly_issued_by(authority)


@pytest.mark.usefixtures("kubectl")
def test_central_lease_services_import_from_another_cluster(tmp_path: Path, kube: ApiServer) -> None:
    """tests/kube has two clusters that do."""
    place = tmp_path / "tree"
    (place / "from-west").mkdir(parents=True)
    (place / "from-west/ca.crt").touch()
    Certificates(place / "tls")
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    central = "--set=flannelette.central.enabled=true"
    run_tool("helm", "install", "flannel", str(ROOT / "deploy/helm/flannelette"), *cluster, central)
    try:
        read("Pods of another cluster", tmp_path, kube)
        deployment = kube.call("GET", "/apis/apps/v1/namespaces/kube-flannel/deployments/flannelette-lease")
        told = container_of(pod_of([deployment], "Deployment"), "lease")["args"]
        service = kube.call("GET", "/api/v1/namespaces/kube-flannel/services/flannelette-clusters")["spec"]
    finally:
        run_tool("helm", "uninstall", "flannel", *cluster)
    files = (
        f"{kind}=/etc/flannelette/clusters/{name}"
        for kind, name in (("cert", "east-cluster.crt"), ("key", "east-cluster.key"), ("ca", "ca.crt"))
    )
    assert f"--import=west=192.0.2.7:7070,allow=10.245.0.0/16,{','.join(files)}" in told
    assert "--export=10.244.0.0/16" in told
    assert (service["type"], service["selector"]) == ("NodePort", {"app": "flannelette-lease"})


def test_a_clouds_routes_are_written_by_a_pod_whose_service_account_has_a_role(
    tmp_path: Path, kube: ApiServer, kubectl: Kubectl
) -> None:
    try:
        read("A cloud's routes", tmp_path, kube)
        there = kube.call("GET", "/apis/apps/v1/namespaces/kube-flannel/deployments/flannelette-cloud")
        name = there["spec"]["template"]["spec"]["serviceAccountName"]
        account = kube.call("GET", f"/api/v1/namespaces/kube-flannel/serviceaccounts/{name}")
        assert "eks.amazonaws.com/role-arn" in account["metadata"]["annotations"]
        kept = kube.call("GET", "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg")["data"]
        assert json.loads(kept["net-conf.json"])["Backend"] == {"Type": "aws-vpc"}
        assert [each["name"] for each in pod_of([daemon_set(kube)])["containers"]] == ["lease", "dataplane", "masq"]
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", "flannelette-cloud")


def say_that_it_is_rolled_out(kubectl: Kubectl) -> None:
    """In the place of a controller manager."""
    observed = '--patch={"status": {"observedGeneration": 1000}}'
    kubectl("patch", "daemonset/kube-flannel-ds", "-n=kube-flannel", "--subresource=status", "--type=merge", observed)


def test_nodes_that_wait_for_the_first_one_go_on(tmp_path: Path, kube: ApiServer, kubectl: Kubectl) -> None:
    """tests/kube has the nodes."""
    kubectl("apply", "-k", str(ROOT / "deploy/kubernetes/overlays/per-node"))
    say_that_it_is_rolled_out(kubectl)
    read("One node first", tmp_path, kube)
    mine = pick(render(tmp_path / "tree/deploy/kubernetes/overlays/mine"), "DaemonSet")
    assert mine["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert daemon_set(kube)["spec"]["updateStrategy"]["type"] == "RollingUpdate"


def test_another_network_configuration_takes_new_pods(tmp_path: Path, kube: ApiServer, kubectl: Kubectl) -> None:
    kubectl("apply", "-k", str(ROOT / "deploy/kubernetes/overlays/per-node"))
    before = daemon_set(kube)["spec"]["template"]
    read("Another network configuration", tmp_path, kube)
    assert daemon_set(kube)["spec"]["template"] != before


def test_the_way_back_from_central_lease_services_leaves_nothing_of_them(
    tmp_path: Path, kube: ApiServer, kubectl: Kubectl
) -> None:
    overlays = ROOT / "deploy/kubernetes/overlays"
    kubectl("apply", "-k", str(overlays / "per-node"))
    before = daemon_set(kube)["spec"]["template"]
    kubectl("apply", "-k", str(overlays / "central"))
    kubectl("create", "secret", "generic", "flannelette-lease", "--namespace=kube-flannel")
    assert daemon_set(kube)["spec"]["template"] != before
    say_that_it_is_rolled_out(kubectl)
    read("To central lease services and back", tmp_path, kube)
    assert daemon_set(kube)["spec"]["template"] == before
    left = kubectl("get", "deployment,service,poddisruptionbudget,secret", "--namespace=kube-flannel", "-o=name")
    assert left == ""


def test_a_look_inside_has_the_sockets_and_no_rights(tmp_path: Path, kube: ApiServer, kubectl: Kubectl) -> None:
    kubectl("apply", "-k", str(ROOT / "deploy/kubernetes/overlays/per-node"))
    metadata = {"name": "kube-flannel-ds-x7k2p", "labels": daemon_set(kube)["metadata"]["labels"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_of([daemon_set(kube)])}
    kube.call("POST", PODS, pod)
    read("Look inside", tmp_path, kube)
    looks = kube.call("GET", f"{PODS}/kube-flannel-ds-x7k2p")["spec"]["ephemeralContainers"]
    assert [(look["name"], look["command"][0]) for look in looks] == [("look", "flannelette"), ("call", "grpcurl")]
    for look in looks:
        assert look["volumeMounts"] == [
            {"name": "sockets", "mountPath": "/run/flannelette"},
            {"name": "lease-socket", "mountPath": "/run/flannelette-lease"},
        ]
        rights = look["securityContext"]
        assert (rights["runAsNonRoot"], rights["allowPrivilegeEscalation"]) == (True, False)
        assert (rights["runAsUser"], rights["runAsGroup"]) == (10001, 10001), "whose the sockets are"
        assert rights["capabilities"]["drop"] == ["ALL"]
