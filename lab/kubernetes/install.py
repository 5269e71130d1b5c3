"""How Flannelette, or kube-flannel, gets into the cluster: by the commands of docs/kubernetes.md."""

import json
import os
import sys
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from lab.kubernetes import parts
from lab.kubernetes.node import Node, run, with_port
from lab.kubernetes.options import LEASE_ADDRESSES, POD_NETWORKS, Options
from lab.kubernetes.parts import CACHE, TREE
from lab.topology import OUTSIDE

NAMESPACE: Final = "kube-flannel"
DEPLOY: Final = TREE / "deploy" / "kubernetes"
_CHART: Final = TREE / "deploy" / "helm" / "flannelette"
_TLS: Final = "/etc/flannelette/tls"
_LEASE: Final = "flannelette-lease"
_DAEMON_SET: Final = "kube-flannel-ds"
Kubectl = Callable[..., Awaitable[str]]


async def by_kustomize(kubectl: Kubectl, options: Options, directory: Path) -> None:
    """Applies an overlay of the lab's own, upon the chosen one of the tree."""
    base = DEPLOY / "overlays" / options.overlay
    patches = [_network_patch(options)]
    address = lease_address(options)
    if options.overlay == "central" and address != LEASE_ADDRESSES[4]:
        patches += _other_lease_address(address)
    write_overlay(directory, base, patches)
    await kubectl("apply", "-k", str(directory))


async def by_helm(kubectl: Kubectl, options: Options, config: Path) -> None:
    """Installs the chart of this tree."""
    await _install_chart(kubectl, options, config, _CHART)


async def flannels_manifest(kubectl: Kubectl, options: Options, directory: Path) -> None:
    """Applies an overlay of the lab's own, upon that of kube-flannel."""
    write_overlay(directory, parts.flannels() / "released", [_network_patch(options)])
    await kubectl("apply", "-k", str(directory))


async def flannels_chart(kubectl: Kubectl, options: Options, config: Path) -> None:
    """Installs flannel's own chart."""
    await _install_chart(kubectl, options, config, parts.flannels())


async def upgrade_from_flannels(config: Path) -> None:
    """Makes the release of flannel's chart one of ours."""
    words = ("upgrade", "flannel", str(_CHART), "--namespace", NAMESPACE, "--reset-then-reuse-values")
    await run(*helm(config), *words)


async def clean_up(kubectl: Kubectl, nodes: Sequence[Node]) -> None:
    """Removes what the way back to kube-flannel leaves on each node."""
    for node in nodes:
        await kubectl(*clean_up_words(node.name))
    debuggers = ("pod", "--selector", "app.kubernetes.io/managed-by=kubectl-debug")
    await kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", *debuggers, "--timeout=60s")
    await kubectl("delete", "--wait=false", *debuggers)


def clean_up_words(node: str) -> tuple[str, ...]:
    """kubectl's arguments for one of them."""
    image = f"flannelette-dataplane:{tomllib.loads((TREE / 'pyproject.toml').read_text())['project']['version']}"
    program = ("python3", "-m", "flannelette.services.dataplane.api.cleanup")
    return ("debug", f"node/{node}", "--profile=netadmin", f"--image={image}", "--attach=false", "--", *program)


def helm(config: Path) -> tuple[str, ...]:
    """`helm`, from the outside host."""
    return OUTSIDE.command("env", f"KUBECONFIG={config}", str(CACHE / "bin" / "helm"))


async def certify(kubectl: Kubectl, nodes: Sequence[Node], tls: Path, address: str) -> None:
    """Makes an authority in `tls`, gives the central lease services a certificate, and each node its own two."""
    await _certs("ca", tls)
    await _certs("server", "lease", tls, "--address", address)
    await kubectl("apply", "-f", str(DEPLOY / "base" / "namespace.yaml"))
    files = {"tls.crt": "lease-server.crt", "tls.key": "lease-server.key", "ca.crt": "ca.crt"}
    given = (f"--from-file={key}={tls / name}" for key, name in files.items())
    await kubectl("create", "secret", "generic", _LEASE, "--namespace", NAMESPACE, *given)
    for node in nodes:
        await give_certificates(node, tls)


async def give_certificates(node: Node, tls: Path) -> None:
    """Makes those of a node, and puts them where its pod looks."""
    await _certs("node", node.name, tls)
    await node.run("mkdir", "-p", _TLS)
    own = [f"{node.name}-{service}.{kind}" for service in ("dataplane", "masq") for kind in ("crt", "key")]
    for name in ("ca.crt", *own):
        await node.run("sh", "-c", "umask 077; cat >$0", f"{_TLS}/{name}", file=tls / name)


def lease_address(options: Options) -> str:
    """Where nodes find central lease services: an address of the cluster's first family."""
    return LEASE_ADDRESSES[options.versions[0]]


def write_overlay(directory: Path, base: Path, patches: Sequence[dict[str, Any]]) -> None:
    """An overlay that is `base` with patches."""
    directory.mkdir(exist_ok=True)
    kustomization = {
        "resources": [os.path.relpath(base, directory)],
        "patches": [{"patch": json.dumps(patch)} for patch in patches],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))


async def _install_chart(kubectl: Kubectl, options: Options, config: Path, chart: Path) -> None:
    await kubectl("create", "namespace", NAMESPACE)
    await kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
    networks = [POD_NETWORKS[version] if version in options.versions else "" for version in (4, 6)]
    settings = f"podCidr={networks[0]},podCidrv6={networks[1]},flannel.backend={options.backend}"
    await run(*helm(config), "install", "flannel", str(chart), "--namespace", NAMESPACE, "--set", settings)


async def _certs(*words: str | Path) -> None:
    await run(sys.executable, "-m", "flannelette.services.ctl.main", "certs", *map(str, words))


def _network_patch(options: Options) -> dict[str, Any]:
    return _patch("ConfigMap", "kube-flannel-cfg", data={"net-conf.json": json.dumps(_network_of(options))})


def _network_of(options: Options) -> dict[str, object]:
    """Returns the network configuration of the cluster."""
    networks: dict[str, object] = {"Network": POD_NETWORKS[4]} if 4 in options.versions else {"EnableIPv4": False}
    if 6 in options.versions:
        networks |= {"EnableIPv6": True, "IPv6Network": POD_NETWORKS[6]}
    if options.firewall == "nftables":
        networks["EnableNFTables"] = True
    return {**networks, "Backend": {"Type": options.backend}}


def _other_lease_address(address: str) -> list[dict[str, Any]]:
    environment = [{"name": "FLANNELD_LEASE_ADDRESS", "value": with_port(address, 7070)}]
    containers = [{"name": name, "env": environment} for name in ("dataplane", "masq")]
    pod = {"template": {"spec": {"containers": containers}}}
    return [
        _patch("Service", _LEASE, spec={"clusterIP": address}),
        {**_patch("DaemonSet", _DAEMON_SET, spec=pod), "apiVersion": "apps/v1"},
    ]


def _patch(kind: str, name: str, **fields: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **fields}
