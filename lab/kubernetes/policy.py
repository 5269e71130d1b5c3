"""A real engine of NetworkPolicies in the cluster, and which pod then reaches which: POLICY= of `make kube-lab`."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from string import Template
from typing import Any, Final

from lab.cluster import LabFailed, Pod
from lab.kubernetes.answers import get_name
from lab.kubernetes.cluster import POLL_SECONDS, Cluster
from lab.kubernetes.options import SERVICE_NETWORKS, Options
from lab.kubernetes.parts import CACHE, HERE
from lab.vm import PATIENCE

_PORT: Final = 80
_SECONDS: Final = 60.0 * PATIENCE
_PAUSE: Final = 0.1
"""Pause between two connections of a pair of pods, while something is disturbed."""
SETTLES: Final = 7.0 * PATIENCE
"""Seconds in which masq has looked at its rules at least once."""
DISTURBED: Final = "allow the client"
"""The scene under which things are disturbed."""
ROLE: Final = "role"
CLIENT: Final = "client"


@dataclass(frozen=True, slots=True)
class Scene:
    """A NetworkPolicy, and whom it lets through."""

    title: str
    spec: Mapping[str, Any] | None
    """None: there is no policy."""
    allows: Callable[[bool, bool], bool]
    """Whether a pod reaches a pod of another node, by whether each of the two is the client."""


_ALL: Final[Mapping[str, Any]] = {"podSelector": {}}
_FROM_CLIENT: Final = [{"podSelector": {"matchLabels": {ROLE: CLIENT}}}]
SCENES: Final = (
    Scene("no policy", None, lambda _, __: True),
    Scene("default deny", {**_ALL, "policyTypes": ["Ingress"]}, lambda _, __: False),
    Scene(
        "allow the client",
        {**_ALL, "policyTypes": ["Ingress"], "ingress": [{"from": _FROM_CLIENT}]},
        lambda source, _: source,
    ),
    Scene(
        "allow a port",
        {**_ALL, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": _PORT, "protocol": "TCP"}]}]},
        lambda _, __: True,
    ),
    Scene(
        "deny another port",
        {**_ALL, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": _PORT + 1, "protocol": "TCP"}]}]},
        lambda _, __: False,
    ),
    Scene(
        "no egress of the client",
        {"podSelector": {"matchLabels": {ROLE: CLIENT}}, "policyTypes": ["Egress"]},
        lambda source, _: not source,
    ),
)


def command_of(options: Options) -> list[str]:
    """The command line of the engine in its container."""
    versions = options.versions
    if options.policy == "kube-router":
        services = [f"--service-cluster-ip-range={SERVICE_NETWORKS[version]}" for version in versions]
        only = ["--run-router=false", "--run-service-proxy=false", "--run-firewall=true"]
        families = [f"--enable-ipv4={str(4 in versions).lower()}", f"--enable-ipv6={str(6 in versions).lower()}"]
        return ["/engine", *only, *families, *services, "--hostname-override=$(NODE_NAME)"]
    return ["/engine", "--hostname-override=$(NODE_NAME)", "--disable-nri", "--v=2"]


async def install(cluster: Cluster, options: Options) -> None:
    """Puts the engine on every node; returns when its pods run."""
    program = CACHE / "bin" / options.policy
    for node in cluster.nodes:
        path = f"/usr/local/sbin/{options.policy}"
        await node.run("sh", "-c", "cat >$0 && chmod 755 $0", path, file=program)
    words = {"command": json.dumps(command_of(options)), "engine": options.policy}
    await cluster.apply(Template((HERE / "policy.yaml").read_text()).substitute(words))
    await cluster.kubectl(
        *("rollout", "status", "--namespace=kube-system", "daemonset/policy-engine", f"--timeout={_SECONDS:.0f}s")
    )


async def mark_client(cluster: Cluster) -> str:
    """Makes the pod of the first node the client of the scenes; its host's name."""
    selector = f"spec.nodeName={cluster.nodes[0].name}"
    pods = json.loads(
        await cluster.kubectl("get", "pods", "--selector=app=web", f"--field-selector={selector}", "--output=json")
    )
    (name,) = (item["metadata"]["name"] for item in pods["items"])
    await cluster.kubectl("label", "pod", name, f"{ROLE}={CLIENT}", "--overwrite")
    return cluster.nodes[0].name


async def set_scene(cluster: Cluster, scene: Scene) -> None:
    """Replaces the NetworkPolicy of the namespace."""
    await cluster.kubectl("delete", "networkpolicy", "scene", "--ignore-not-found")
    if scene.spec is not None:
        policy = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "scene"},
            "spec": dict(scene.spec),
        }
        await cluster.apply(json.dumps(policy))


Pair = tuple[Pod, Pod]


def pairs(pods: Sequence[Pod]) -> list[Pair]:
    """Every ordered pair of pods of different nodes, in each address family."""
    return [
        (source, target)
        for source in pods
        for target in pods
        if source.host != target.host and source.address.version == target.address.version
    ]


async def reached(found: Iterable[Pair], seconds: float) -> dict[Pair, bool]:
    """Finds which of these pods answer the other by TCP."""
    asked = list(found)
    names = await asyncio.gather(
        *(get_name(source.namespace, target.address, _PORT, seconds) for source, target in asked)
    )
    return {pair: bool(name) for pair, name in zip(asked, names, strict=True)}


async def until_enforced(pods: Sequence[Pod], scene: Scene, client: str) -> None:
    """Returns when the pods reach each other as the policy says. Raises LabFailed."""
    end = time.monotonic() + _SECONDS
    while wrong := await violations(pods, scene, client):
        if time.monotonic() > end:
            raise LabFailed(f"{scene.title}: {'; '.join(wrong)}, after {_SECONDS:.0f} s")
        await asyncio.sleep(POLL_SECONDS)


async def violations(pods: Sequence[Pod], scene: Scene, client: str) -> list[str]:
    """Where packets do not do what the policy says, a sentence each."""
    return [
        _sentence(pair, answered)
        for pair, answered in (await reached(pairs(pods), 1.0 * PATIENCE)).items()
        if answered is not _allowed(pair, scene, client)
    ]


async def lose_rules(cluster: Cluster, options: Options) -> None:
    """Deletes masq's accepts on every node, which masq repairs."""
    for node in cluster.nodes:
        for version in options.versions:
            iptables = "iptables" if version == 4 else "ip6tables"
            jump = f"{iptables} -D FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD"
            words = f"{iptables} -F FLANNEL-FWD && {jump}"
            if options.firewall == "nftables":
                words = f"nft delete table {'ip' if version == 4 else 'ip6'} flannelette"
            await node.run("sh", "-c", words)


async def kill_masq(cluster: Cluster, _: Options) -> None:
    """Kills every masq; returns when they run again."""
    killed = [each for each in await cluster.containers() if each.name == "masq"]
    nodes = {node.name: node for node in cluster.nodes}
    for each in killed:
        await nodes[each.node].run("ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", each.id)
    await cluster.until_replaced(killed)


async def kill_engine(cluster: Cluster, _: Options) -> None:
    """Kills the engine on every node, which puts its rules first again when it starts."""
    for node in cluster.nodes:
        await node.run("sh", "-c", "kill -9 $(pgrep -x engine)")


DISTURBANCES: Final[Mapping[str, Callable[[Cluster, Options], Awaitable[None]]]] = {
    "every masq is killed": kill_masq,
    "masq's rules are deleted": lose_rules,
    "the engine is killed": kill_engine,
}


async def try_all(cluster: Cluster, options: Options, notice: Callable[[str], None]) -> list[str]:
    """Every scene, then one of them under every disturbance; what packets did against the policy, a sentence each."""
    failures: list[str] = []
    pods, client = await cluster.pods(), await mark_client(cluster)
    for scene in SCENES:
        notice(scene.title)
        await set_scene(cluster, scene)
        with collected(failures):
            await until_enforced(pods, scene, client)
    scene = next(each for each in SCENES if each.title == DISTURBED)
    await set_scene(cluster, scene)
    with collected(failures):
        await until_enforced(pods, scene, client)
        for title, disturb in DISTURBANCES.items():
            notice(title)
            async with never_violated(pods, scene, client) as violated:
                await disturb(cluster, options)
                await asyncio.sleep(SETTLES)
                await until_enforced(pods, scene, client)
            failures += [f"{title}: {sentence}" for sentence in dict.fromkeys(violated)]
    await set_scene(cluster, SCENES[0])
    return failures


@contextmanager
def collected(failures: list[str]) -> Iterator[None]:
    """What fails is a sentence more, and the trial goes on."""
    try:
        yield
    except LabFailed as error:
        failures.append(str(error))


@asynccontextmanager
async def never_violated(pods: Sequence[Pod], scene: Scene, client: str) -> AsyncIterator[list[str]]:
    """What is reached against the policy meanwhile, a sentence each: connections of the denied pairs all the time."""
    found: list[str] = []
    denied = [pair for pair in pairs(pods) if not _allowed(pair, scene, client)]

    async def watch() -> None:
        while True:
            for pair, answered in (await reached(denied, 0.5 * PATIENCE)).items():
                if answered:
                    found.append(_sentence(pair, answered=True))
            await asyncio.sleep(_PAUSE)

    task = asyncio.create_task(watch())
    try:
        yield found
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _allowed(pair: Pair, scene: Scene, client: str) -> bool:
    source, target = pair
    return scene.allows(source.host.name == client, target.host.name == client)


def _sentence(pair: Pair, answered: bool) -> str:
    source, target = pair
    how = "reaches" if answered else "does not reach"
    return f"the pod of {source.host.name} {how} {target.address} of {target.host.name}"
