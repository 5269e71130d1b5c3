"""The chart in a cluster: its objects are accepted, and a release takes the place of flannel's."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.contract.kubernetes.test_helm_chart import CHART, FLANNELS, WHERE, helm
from tests.contract.kubernetes.test_manifests import kube_flannel
from tests.kubernetes.api_server import ApiServer, Document
from tests.kubernetes.manifests import OVERLAYS, Kubectl, container_of, dump, of_flannel, parse, pod_of, run_tool
from tests.upgrade.releases import COMMITS, files_of

DAEMON_SET = "/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds"


def test_an_upgrade_takes_over_the_release_of_flannels_chart_and_a_rollback_gives_it_back(
    kubectl: Kubectl, kube: ApiServer
) -> None:
    theirs = str(of_flannel("."))
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    run_tool("helm", "install", "flannel", theirs, *cluster, "--set=podCidr=10.42.0.0/16")
    before = kube.call("GET", DAEMON_SET)
    run_tool("helm", "upgrade", "--install", "flannel", str(CHART), *cluster, "--reset-then-reuse-values")
    after = kube.call("GET", DAEMON_SET)
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "the same object: its pods are replaced one by one"
    assert [each["name"] for each in pod_of([after])["containers"]] == ["lease", "dataplane", "masq"]
    kept = kube.call("GET", "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg")
    assert "10.42.0.0/16" in kept["data"]["net-conf.json"]
    run_tool("helm", "rollback", "flannel", *cluster)
    assert [each["name"] for each in pod_of([kube.call("GET", DAEMON_SET)])["containers"]] == ["kube-flannel"]
    run_tool("helm", "uninstall", "flannel", *cluster)


def test_a_release_takes_over_what_the_manifests_made(kubectl: Kubectl, kube: ApiServer) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    before = kube.call("GET", DAEMON_SET)
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    upgrade = ("upgrade", "--install", "flannel", str(CHART), *cluster)
    with pytest.raises(AssertionError, match="invalid ownership metadata"):
        run_tool("helm", *upgrade)
    run_tool("helm", *upgrade, "--take-ownership")
    after = kube.call("GET", DAEMON_SET)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["selector"] == before["spec"]["selector"]
    run_tool("helm", "uninstall", "flannel", *cluster)


def test_kube_flannels_manifest_becomes_a_release_by_way_of_our_manifests(kubectl: Kubectl, kube: ApiServer) -> None:
    kubectl("apply", "-f", "-", text=kube_flannel())
    before = kube.call("GET", DAEMON_SET)
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    upgrade = (
        "upgrade",
        "--install",
        "flannel",
        str(CHART),
        *cluster,
        "--set=podCidr=10.42.0.0/16",
        "--take-ownership",
    )
    with pytest.raises(AssertionError, match="first `kubectl apply -k deploy/kubernetes/overlays/in-place`"):
        run_tool("helm", *upgrade)
    kubectl("apply", "-k", str(OVERLAYS / "in-place"))
    run_tool("helm", *upgrade)
    after = kube.call("GET", DAEMON_SET)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [each["name"] for each in pod_of([after])["containers"]] == ["lease", "dataplane", "masq"]
    assert [each["name"] for each in pod_of([after])["initContainers"]] == ["install-cni-plugin"]
    run_tool("helm", "uninstall", "flannel", *cluster)


def test_the_release_of_flannels_chart_is_taken_over_under_its_own_name_alone(
    kubectl: Kubectl, kube: ApiServer
) -> None:
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    run_tool("helm", "install", "overlay", str(of_flannel(".")), *cluster)
    with pytest.raises(AssertionError, match="the DaemonSet kube-flannel-ds is of the release overlay, and"):
        run_tool("helm", "upgrade", "--install", "flannelette", str(CHART), *cluster, "--take-ownership")
    assert [each["name"] for each in pod_of([kube.call("GET", DAEMON_SET)])["containers"]] == ["kube-flannel"]
    run_tool("helm", "upgrade", "--install", "overlay", str(CHART), *cluster)
    ours = ["lease", "dataplane", "masq"]
    assert [each["name"] for each in pod_of([kube.call("GET", DAEMON_SET)])["containers"]] == ours
    run_tool("helm", "upgrade", "--install", "flannelette", str(CHART), *cluster, "--take-ownership")
    assert [each["name"] for each in pod_of([kube.call("GET", DAEMON_SET)])["containers"]] == ours
    run_tool("helm", "uninstall", "flannelette", *cluster)
    run_tool("helm", "uninstall", "overlay", *cluster)


@pytest.mark.parametrize("values", [(), ("--set=flannelette.central.enabled=true",)])
def test_the_api_server_accepts_every_field_of_every_object(kubectl: Kubectl, values: tuple[str, ...]) -> None:
    documents = helm(f"--values={FLANNELS}", *values)
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=dump(documents))
    assert [line.endswith("(server dry run)") for line in said.splitlines()] == [True] * len(documents)


def test_only_that_the_program_for_policies_is_privileged_may_be_against_a_cluster(kubectl: Kubectl) -> None:
    text = dump(helm(f"--values={FLANNELS}", "--set=netpol.enabled=true"))
    complaints = r"is invalid: spec.template.spec.containers\[3\].securityContext.privileged: Forbidden: [^\n]+\n$"
    with pytest.raises(AssertionError, match=complaints):
        kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)


def test_a_release_keeps_the_selector_that_its_daemon_set_has(kubectl: Kubectl, kube: ApiServer) -> None:
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    upgrade = ("upgrade", "--install", "flannel", str(CHART), *cluster)
    run_tool("helm", *upgrade, "--set=flannelette.selector.app=flannel")
    before = kube.call("GET", DAEMON_SET)
    assert before["spec"]["selector"]["matchLabels"] == {"app": "flannel"}
    run_tool("helm", *upgrade, f"--values={FLANNELS}")
    after = kube.call("GET", DAEMON_SET)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["selector"]["matchLabels"] == {"app": "flannel"}
    assert pod_of([after])["nodeSelector"]
    said = run_tool("helm", "get", "notes", "flannel", *cluster)
    assert "Not in force, because they were flanneld's: flannel.image, flannel.resources." in said
    run_tool("helm", "uninstall", "flannel", *cluster)


@pytest.mark.parametrize("version", COMMITS)
def test_an_upgrade_from_an_earlier_chart_may_reuse_all_its_values(
    kubectl: Kubectl, kube: ApiServer, tmp_path: Path, version: str
) -> None:
    earlier = files_of(version, tmp_path, "deploy/helm") / "deploy/helm/flannelette"
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    run_tool("helm", "install", "flannel", str(earlier), *cluster, "--set=flannel.backend=host-gw")
    run_tool("helm", "upgrade", "flannel", str(CHART), *cluster, "--reuse-values")
    upgraded = kube.call("GET", DAEMON_SET)
    kept = kube.call("GET", "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg")
    run_tool("helm", "uninstall", "flannel", *cluster)
    assert [each["name"] for each in pod_of([upgraded])["containers"]] == ["lease", "dataplane", "masq"]
    assert "NET_RAW" in container_of(pod_of([upgraded]), "dataplane")["securityContext"]["capabilities"]["add"]
    assert "host-gw" in kept["data"]["net-conf.json"]


NEW = {
    "flannelette": {
        "central": {"enabled": True, "certManager": {"enabled": True}},
        "cloud": {"enabled": True},
        "clusters": {"exports": ["none"], "secret": "from-west"},
    },
    "flannel": {"backend": "ipsec", "psk": "0123456789abcdef" * 6},
}
"""Asks for what came after the first release."""


@pytest.mark.parametrize("version", COMMITS)
def test_what_is_new_can_be_asked_for_beside_the_values_of_an_earlier_chart(tmp_path: Path, version: str) -> None:
    """With --reuse-values helm takes the defaults of the earlier chart, too."""
    earlier = files_of(version, tmp_path, "deploy/helm") / "deploy/helm/flannelette"
    mixed, new = shutil.copytree(CHART, tmp_path / "mixed"), tmp_path / "new.yaml"
    shutil.copy(earlier / "values.yaml", mixed)
    new.write_text(yaml.safe_dump(NEW))
    found = parse(run_tool("helm", "template", "flannel", str(mixed), *WHERE, f"--values={new}"))
    expected = helm(f"--values={new}")
    assert [without_resources(each) for each in found] == [without_resources(each) for each in expected]


def without_resources(document: Document) -> Document:
    """The object without what was measured anew in between, of pods."""
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    for container in pod.get("containers", ()):
        for name in ("resources", "livenessProbe"):
            container.pop(name, None)
    return document


def test_values_of_flannels_chart_alone_are_refused(kubectl: Kubectl, kube: ApiServer) -> None:
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    run_tool("helm", "install", "flannel", str(of_flannel(".")), *cluster)
    with pytest.raises(AssertionError, match="missing property 'flannelette'"):
        run_tool("helm", "upgrade", "flannel", str(CHART), *cluster, "--reuse-values")
    run_tool("helm", "uninstall", "flannel", *cluster)


def test_nodes_can_wait_until_their_pod_is_deleted_and_then_go_on(kubectl: Kubectl, kube: ApiServer) -> None:
    cluster = (f"--kubeconfig={kube.kubeconfig()}", "--namespace=kube-flannel")
    upgrade = ("upgrade", "--install", "flannel", str(CHART), *cluster)
    found = []
    for strategy in ({"type": "OnDelete"}, {}, {"rollingUpdate": {"maxUnavailable": "5%"}}):
        run_tool("helm", *upgrade, f"--set-json=flannelette.updateStrategy={json.dumps(strategy)}")
        found.append(kube.call("GET", DAEMON_SET)["spec"]["updateStrategy"])
        notes = run_tool("helm", "get", "notes", "flannel", *cluster)
        waits = strategy.get("type") == "OnDelete"
        assert ("delete pod --selector app=flannel --field-selector spec.nodeName=NODE" in notes) is waits
        assert ("rollout status daemonset/kube-flannel-ds" in notes) is not waits
    run_tool("helm", "uninstall", "flannel", *cluster)
    assert [each["type"] for each in found] == ["OnDelete", "RollingUpdate", "RollingUpdate"]
    assert [each["rollingUpdate"]["maxUnavailable"] for each in found[1:]] == [1, "5%"]
