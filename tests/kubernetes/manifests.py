"""deploy/kubernetes and deploy/helm as kubectl and helm render them, and what stands in that."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.kubernetes.api_server import ApiServer, Document, Refused
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.tools import cached, find_tool

OVERLAYS: Final = ROOT / "deploy" / "kubernetes" / "overlays"

Kubectl = Callable[..., str]


def of_flannel(name: str) -> Path:
    """A file of kube-flannel's chart, `.` for all of it, or `released` for what its released manifest is made of."""
    found = cached(f"kube-flannel-0.28.9/{name}", "flanneld")
    if not found.exists():
        pytest.skip("there is no kube-flannel: `make tools` fetches it, if Go 1.25 or newer is installed")
    return found


def run_tool(name: str, *arguments: str, text: str = "") -> str:
    """What it prints. Warnings are failures."""
    done = subprocess.run(
        [find_tool(name), *arguments], input=text, capture_output=True, text=True, check=False, timeout=2 * PATIENCE
    )
    if done.returncode:
        raise AssertionError(f"{name} {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


def render(overlay: Path | str) -> list[Document]:
    """The objects of an overlay, by its path or its name."""
    return parse(run_tool("kubectl", "kustomize", str(OVERLAYS / overlay)))


def with_component(directory: Path, name: str, overlay: str = "per-node") -> Path:
    """An overlay in this directory: that one with a component."""
    shutil.copytree(OVERLAYS.parent, directory / "kubernetes")
    mine = directory / "kubernetes/overlays/mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(f"resources: [../{overlay}]\ncomponents: [../../components/{name}]\n")
    return mine


def parse(text: str) -> list[Document]:
    """The objects of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document]


def dump(documents: Sequence[Document]) -> str:
    """The YAML stream of objects."""
    return str(yaml.safe_dump_all(documents))


def pick(documents: Sequence[Document], kind: str, name: str = "") -> Document:
    """The one of this kind (and name)."""
    (found,) = (d for d in documents if d["kind"] == kind and name in ("", d["metadata"]["name"]))
    return found


def pod_of(documents: Sequence[Document], kind: str = "DaemonSet") -> Document:
    """The pod's spec in the one object of this kind."""
    spec: Document = pick(documents, kind)["spec"]["template"]["spec"]
    return spec


def container_of(pod: Document, name: str) -> Document:
    """A container by its name, also one that runs before the others."""
    return next(c for c in (*pod["containers"], *pod.get("initContainers", ())) if c["name"] == name)


@pytest.fixture
def kubectl(kube: ApiServer) -> Iterator[Kubectl]:
    """kubectl as the administrator of a cluster with our namespace; what it made in that is gone afterwards."""
    flags = (f"--kubeconfig={kube.kubeconfig()}", f"--cache-dir={kube.directory}/kubectl")

    def run(*arguments: str, text: str = "") -> str:
        return run_tool("kubectl", *flags, *arguments, text=text)

    run("apply", "-f", "-", text=dump([pick(render("per-node"), "Namespace")]))
    yield run
    for group, resources in _MADE.items():
        for resource in resources.split():
            kube.call("DELETE", f"/{group}/namespaces/kube-flannel/{resource}")
    for kind in ("clusterroles", "clusterrolebindings"):
        with suppress(Refused):  # there is none
            kube.call("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{kind}/flannel")


_MADE: Final = {
    "api/v1": "pods configmaps secrets serviceaccounts services",
    "apis/apps/v1": "daemonsets deployments",
    "apis/policy/v1": "poddisruptionbudgets",
}
