"""flannelette-cloud in Kubernetes: its pod by the component and by the chart, its rights, and a route for a Node."""

from pathlib import Path
from typing import Any, Final

import pytest

from flannelette.services.runtime.process.version import version
from tests.clouds.aws import environment, make_vpc, metadata, moto
from tests.clouds.process import cloud_process
from tests.contract.kubernetes.test_components import chart
from tests.contract.kubernetes.test_events import token_of
from tests.contract.kubernetes.test_helm_chart import in_order
from tests.contract.kubernetes.test_rights import SERVICE_ACCOUNT, settings_of
from tests.kubernetes.api_server import ApiServer, Document
from tests.kubernetes.manifests import Kubectl, container_of, dump, pick, pod_of, render, with_component
from tests.kubernetes.stores import FLANNEL, MANAGED
from tests.services.command_lines import parsed
from tests.services.lease import ServiceProcess

NAME: Final = "flannelette-cloud"
ON: Final = ("flannel.backend=aws-vpc", "flannelette.cloud.enabled=true")
AWS: Final = '{"Network":"10.244.0.0/16","Backend":{"Type":"aws-vpc"}}'


@pytest.fixture
def component(tmp_path: Path) -> list[Document]:
    return render(with_component(tmp_path, "cloud"))


def test_the_chart_and_the_component_make_the_same_objects(component: list[Document]) -> None:
    documents = chart(*ON)
    assert in_order(pod_of(documents, "Deployment")) == in_order(pod_of(component, "Deployment"))
    ours, theirs = (pick(each, "Deployment") for each in (documents, component))
    assert {**ours["spec"], "template": None} == {**theirs["spec"], "template": None}
    for kind, part in (
        ("ClusterRole", "rules"),
        ("ClusterRoleBinding", "roleRef"),
        ("ClusterRoleBinding", "subjects"),
    ):
        assert pick(documents, kind, NAME)[part] == pick(component, kind, NAME)[part]
    assert pick(documents, "ServiceAccount", NAME)["metadata"]["namespace"] == "kube-flannel"
    assert NAME not in dump(chart(ON[0])), "it may run elsewhere"


@pytest.mark.parametrize("overlay", ["per-node", "central"])
def test_the_api_server_accepts_it_beside_lease_services_of_nodes_and_central_ones(
    kubectl: Kubectl, tmp_path: Path, overlay: str
) -> None:
    documents = render(with_component(tmp_path, "cloud", overlay))
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=dump(documents))
    assert len(said.splitlines()) == len(documents)
    by_chart = chart(*ON, f"flannelette.central.enabled={str(overlay == 'central').lower()}")
    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=dump(by_chart))


def test_neither_container_has_a_right_and_each_has_its_own_credentials(component: list[Document]) -> None:
    pod = pod_of(component, "Deployment")
    assert pod["automountServiceAccountToken"] is False
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert (rights["runAsNonRoot"], rights["runAsUser"], rights["capabilities"]) == (
            True,
            10001,
            {"drop": ["ALL"]},
        )
        assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
    lease, cloud = (container_of(pod, name) for name in ("lease", "cloud"))
    assert [SERVICE_ACCOUNT in mounts(each) for each in (lease, cloud)] == [True, False]
    assert ["/etc/flannelette/cloud" in mounts(each) for each in (lease, cloud)] == [False, True]
    assert ("envFrom" in lease, cloud["envFrom"]) == (False, [{"secretRef": {"name": NAME, "optional": True}}])
    assert [each["image"] for each in (lease, cloud)] == [f"flannelette-{n}:{version()}" for n in ("lease", "cloud")]


def mounts(container: Document) -> set[str]:
    return {mount["mountPath"] for mount in container["volumeMounts"]}


def test_its_ports_are_no_others_and_its_probes_ask_there(component: list[Document]) -> None:
    """All are in the network of the host."""
    ports = []
    for container in pod_of(component, "Deployment")["containers"]:
        settings = settings_in(container)
        assert settings.healthz_ip == "127.0.0.1"
        for probe, path in (("startupProbe", "healthz"), ("livenessProbe", "healthz"), ("readinessProbe", "readyz")):
            get = {"host": "127.0.0.1", "path": f"/{path}", "port": settings.healthz_port}
            assert container[probe]["httpGet"] == get
        ports.append(settings.healthz_port)
    for overlay, kind in (("per-node", "DaemonSet"), ("central", "Deployment")):
        ports += [settings_of(each).healthz_port for each in pod_of(render(overlay), kind)["containers"]]
    assert len(set(ports)) == len(ports)


def settings_in(container: dict[str, Any]) -> Any:
    """What the service makes of its arguments."""
    variables = {each["name"]: each["value"] for each in container["env"]}
    return parsed(container["name"], container["args"], variables)


def test_values_are_those_of_a_role_a_secret_flags_and_a_claim() -> None:
    role = "arn:aws:iam::123456789012:role/routes"
    documents = chart(
        *ON,
        r"flannelette.cloud.serviceAccount.annotations.eks\.amazonaws\.com/role-arn=" + role,
        "flannelette.cloud.args={--cloud-mark=west,--cloud-interval=30}",
        "flannelette.cloud.secret=mine",
        "flannelette.cloud.stateClaim=routes",
        "flannelette.cloud.nodeSelector.routes=yes",
        "flannel.args={--kube-subnet-mgr,--ip-masq,--kube-annotation-prefix=example.org/net}",
        "flannelette.image.registry=registry.example.org/",
    )
    account = pick(documents, "ServiceAccount", NAME)
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": role}
    pod = pod_of(documents, "Deployment")
    assert (pod["serviceAccountName"], pod["nodeSelector"]) == (NAME, {"routes": "yes"})
    lease, cloud = (container_of(pod, name) for name in ("lease", "cloud"))
    assert cloud["args"] == ["--cloud-mark=west", "--cloud-interval=30", "--healthz-port=9475"]
    assert cloud["image"] == f"registry.example.org/flannelette-cloud:{version()}"
    assert "--kube-annotation-prefix=example.org/net" in lease["args"], "nodes have their leases there"
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["state"]["persistentVolumeClaim"] == {"claimName": "routes"}
    assert volumes["credentials"]["secret"]["secretName"] == cloud["envFrom"][0]["secretRef"]["name"] == "mine"
    assert dump(documents).count("mine") == 2


@pytest.mark.parametrize(
    "setting", ["enable=true", "args=--cloud-mark", "args={cloud-mark}", "secret=", "stateClaim=A_B", "replicas=2"]
)
def test_a_value_that_means_nothing_is_refused(setting: str) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema"):
        chart(f"flannelette.cloud.{setting}")


async def test_a_node_of_the_cluster_has_its_route_by_the_rights_of_the_manifest(
    kube: ApiServer, kubectl: Kubectl, component: list[Document], tmp_path: Path
) -> None:
    mine = (d for d in component if d["metadata"]["name"] == NAME and d["kind"] != "Deployment")
    kubectl("apply", "-f", "-", text=dump([*mine]))
    account = f"--as=system:serviceaccount:kube-flannel:{NAME}"
    said = kubectl("auth", "can-i", "--list", "--no-headers", account)
    resources = [line.split()[0] for line in said.splitlines() if not line.startswith(" ")]
    assert sorted(r for r in resources if not r.startswith("self")) == ["events", "nodes"]
    for verb, resource in (("patch", "nodes"), ("patch", "nodes/status"), ("get", "secrets")):
        with pytest.raises(AssertionError, match="no"):
            kubectl("auth", "can-i", verb, resource, account)
    lease = container_of(pod_of(component, "Deployment"), "lease")
    flags = [each for each in lease["args"] if not each.startswith("--healthz")]
    (tmp_path / "net-conf.json").write_text(AWS)
    where = (
        f"--kubeconfig-file={kube.kubeconfig(token_of(kube, NAME))}",
        f"--net-config-path={tmp_path}/net-conf.json",
    )
    leased = MANAGED | {f"{FLANNEL}public-ip": "10.99.0.11"}
    try:
        with moto(tmp_path) as ec2, ServiceProcess(tmp_path, *flags, *where):
            vpc = make_vpc(ec2)
            interface = vpc.instance("10.99.0.11")
            kube.make_node("n1", "10.244.1.0/24", annotations=leased)
            with metadata(vpc) as url:
                async with cloud_process(tmp_path, environment(ec2, url)) as cloud:
                    await cloud.until_routes("n1")
                    assert vpc.routes() == {"10.244.1.0/24": interface}
                    kube.delete_node("n1")
                    await cloud.until_routes()
            assert vpc.routes() == {}
            assert "Forbidden" not in (tmp_path / "lease.log").read_text()
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", NAME)
