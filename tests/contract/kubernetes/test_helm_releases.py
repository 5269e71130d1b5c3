"""The chart in a cluster: its objects are accepted, and a release takes the place of flannel's."""

import pytest

from tests.contract.kubernetes.test_helm_chart import CHART, FLANNELS, helm
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.manifests import OVERLAYS, Kubectl, dump, of_flannel, pod_of, run_tool

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
    assert "Not in force, for they were flanneld's: flannel.image, flannel.resources." in said
    run_tool("helm", "uninstall", "flannel", *cluster)
