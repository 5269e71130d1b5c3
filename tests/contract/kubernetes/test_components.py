"""What components of kustomize and values of the chart add: both give the same objects, which are accepted."""

from pathlib import Path

import pytest

from tests.kubernetes.api_server import Document
from tests.kubernetes.manifests import Kubectl, dump, parse, pick, pod_of, render, run_tool, with_component
from tests.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "flannelette"


def chart(*settings: str) -> list[Document]:
    """The objects of a release called flannel, with these values."""
    where = ("--namespace=kube-flannel", "--kube-version=1.34")
    return parse(run_tool("helm", "template", "flannel", str(CHART), *where, *(f"--set={each}" for each in settings)))


def by_name(pod: Document) -> Document:
    """The pod with its volumes and containers by their names: the order of volumes says nothing."""
    lists = ("volumes", "containers", "initContainers")
    return pod | {key: {each["name"]: each for each in pod[key]} for key in lists}


def test_the_program_for_network_policies_is_that_of_the_chart(tmp_path: Path) -> None:
    component, value = render(with_component(tmp_path, "kube-network-policies")), chart("netpol.enabled=true")
    assert by_name(pod_of(component)) == by_name(pod_of(value))
    assert pick(component, "ClusterRole")["rules"] == pick(value, "ClusterRole")["rules"]
    assert {d["kind"] for d in component} - {d["kind"] for d in value} == {"Namespace"}


def test_of_the_program_for_network_policies_that_it_is_privileged_is_all_that_may_be_against_a_cluster(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    text = dump(render(with_component(tmp_path, "kube-network-policies")))
    complaints = r"is invalid: spec.template.spec.containers\[\d\].securityContext.privileged: Forbidden: [^\n]+\n$"
    with pytest.raises(AssertionError, match=complaints):
        kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)


def test_the_program_for_network_policies_is_refused_where_nodes_have_no_token(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    mine = with_component(tmp_path, "kube-network-policies", overlay="central")
    with pytest.raises(AssertionError, match=r'volumeMounts\[1\].name: Not found: "token"'):
        kubectl("apply", "--dry-run=server", "-f", "-", text=dump(render(mine)))


def test_the_directory_of_plugins_is_that_of_the_charts_value(tmp_path: Path) -> None:
    component = render(with_component(tmp_path, "usr-lib-cni"))
    assert by_name(pod_of(component)) == by_name(pod_of(chart("flannel.cniBinDir=/usr/lib/cni")))


@pytest.mark.parametrize("source", ["overlay", "chart"])
def test_central_lease_services_are_not_all_lost_with_a_node_a_zone_or_by_a_drain(source: str) -> None:
    documents = render("central") if source == "overlay" else chart("flannelette.central.enabled=true")
    deployment, budget = pick(documents, "Deployment"), pick(documents, "PodDisruptionBudget")
    theirs = {"matchLabels": {"app": "flannelette-lease"}}
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= theirs["matchLabels"].items()
    (node,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert node == {"topologyKey": "kubernetes.io/hostname", "labelSelector": theirs}
    (zone,) = pod["spec"]["topologySpreadConstraints"]
    assert (zone["topologyKey"], zone["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", "ScheduleAnyway")
    assert zone["labelSelector"] == budget["spec"]["selector"] == deployment["spec"]["selector"] == theirs
    assert budget["spec"]["maxUnavailable"] == 1 < deployment["spec"]["replicas"]
    assert pod["spec"]["priorityClassName"] == "system-cluster-critical"


def certificates(documents: list[Document]) -> dict[tuple[str, str], Document]:
    """What is for cert-manager, by kind and name."""
    theirs = (each for each in documents if each["apiVersion"] == "cert-manager.io/v1")
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in theirs}


CERT_MANAGER = ("flannelette.central.enabled=true", "flannelette.central.certManager.enabled=true")


def test_cert_managers_objects_are_those_of_the_chart_and_for_the_address_of_the_lease_services(
    tmp_path: Path,
) -> None:
    component = render(with_component(tmp_path, "cert-manager", overlay="central"))
    value = chart(*CERT_MANAGER)
    assert certificates(component) == certificates(value)
    assert not certificates(chart(CERT_MANAGER[0])) | certificates(render("central"))
    for documents in (component, value):
        found = certificates(documents)
        lease, authority = found["Certificate", "flannelette-lease"], found["Certificate", "flannelette-ca"]
        assert lease["ipAddresses"] == [pick(documents, "Service")["spec"]["clusterIP"]]
        assert found["Issuer", lease["issuerRef"]["name"]]["ca"]["secretName"] == authority["secretName"]
        assert "selfSigned" in found["Issuer", authority["issuerRef"]["name"]]
        mounted = {v["name"]: v for v in pod_of(documents, "Deployment")["volumes"]}["tls"]["secret"]
        assert mounted["secretName"] == lease["secretName"]


def test_an_issuer_of_ones_own_signs_into_the_secret_of_ones_own() -> None:
    own = ("issuer.name=mine", "issuer.kind=ClusterIssuer")
    values = (f"flannelette.central.certManager.{each}" for each in own)
    found = certificates(chart(*CERT_MANAGER, *values, "flannelette.central.secret=lease-tls"))
    ((kind_and_name, lease),) = found.items()
    assert kind_and_name == ("Certificate", "flannelette-lease")
    assert lease["issuerRef"] == {"name": "mine", "kind": "ClusterIssuer"}
    assert lease["secretName"] == "lease-tls"
