"""A real engine of NetworkPolicies holds beside masq, packet by packet: in each firewall and in both families.

The rules of kube-network-policies hand each new flow to its process, and take a module that few kernels have.
`make kube-lab POLICY=` tries it, and kube-router, in a real Kubernetes.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from flannelette.services.core.family import FAMILIES
from tests.hosts.four_hosts import IN, ports
from tests.hosts.masq import DUAL_CHAINS, put_right
from tests.kernel.masq.test_rules_of_others import Scene, damage, scene
from tests.kubernetes.policy_engines import (
    NAMESPACES,
    NODE,
    PODS,
    POLICIES,
    Engine,
    PlayedApi,
    serving,
)
from tests.patience import FACTOR, PATIENCE

pytestmark = pytest.mark.modules("nft_queue")
__all__ = ["scene"]

WAYS: Final = (("other_pod", "pod"), ("pod", "other_pod"))
"""Into the node, and out of it."""


@dataclass(frozen=True)
class Policy:
    """A NetworkPolicy, and which of the ways it leaves open."""

    spec: Mapping[str, Any] | None
    """None: there is no policy."""
    into: bool
    out: bool

    @property
    def fates(self) -> dict[tuple[str, str, int], bool]:
        """Whether packets pass, by sender, receiver and version."""
        opened = {"pod": self.into, "other_pod": self.out}
        return {(sender, to, family.version): opened[to] for sender, to in WAYS for family in FAMILIES}


ALL: Final[Mapping[str, Any]] = {"podSelector": {}}
FROM_OTHER: Final = [{"podSelector": {"matchLabels": {"name": "other-pod"}}}]
POLICY: Final = {
    "no policy": Policy(None, into=True, out=True),
    "default deny": Policy({**ALL, "policyTypes": ["Ingress"]}, into=False, out=False),
    "allow a pod": Policy(
        {**ALL, "policyTypes": ["Ingress"], "ingress": [{"from": FROM_OTHER}]}, into=True, out=False
    ),
    "allow ports": Policy(
        {
            **ALL,
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": 5000, "endPort": 9000, "protocol": "UDP"}]}],
        },
        into=True,
        out=True,
    ),
    "allow another port": Policy(
        {**ALL, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 80, "protocol": "UDP"}]}]},
        into=False,
        out=False,
    ),
    "no egress": Policy(
        {"podSelector": {"matchLabels": {"name": "pod"}}, "policyTypes": ["Egress"]}, into=True, out=False
    ),
}


@dataclass
class Trial:
    """An engine on the host of the scene."""

    scene: Scene
    api: PlayedApi
    engine: Engine

    async def set(self, policy: Policy) -> None:
        """The one policy that there is."""
        await self.api.remove(POLICIES, "policy")
        if policy.spec is not None:
            await self.api.put(POLICIES, "policy", {"spec": policy.spec})

    async def passes(self, sender: str, receiver: str, version: int) -> bool:
        """Whether a datagram of a new flow arrives."""
        lab, port = self.scene.lab, next(ports)
        af = socket.AF_INET if version == 4 else socket.AF_INET6
        with lab.namespace(receiver).inside():
            receiving = socket.socket(af, socket.SOCK_DGRAM)
            receiving.bind(("", port))
        with lab.namespace(sender).inside():
            sending = socket.socket(af, socket.SOCK_DGRAM)
        with sending, receiving:
            receiving.setblocking(False)
            sending.sendto(b"x", (getattr(IN[version], receiver), port))
            try:
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(receiving, 16), 0.3 * FACTOR)
            except TimeoutError:
                return False
        return True

    async def fates(self) -> dict[tuple[str, str, int], bool]:
        """Whether packets pass, in every way and both families."""
        ways = [(*way, family.version) for way in WAYS for family in FAMILIES]
        return dict(zip(ways, await asyncio.gather(*(self.passes(*way) for way in ways)), strict=True))

    async def until_enforced(self, policy: Policy) -> None:
        """Packets do what the policy says."""
        found: dict[tuple[str, str, int], bool] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while (found := await self.fates()) != policy.fates:  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"{found} is not {policy.fates}; the engine says:\n{self.engine.end_of_log}")

    @asynccontextmanager
    async def never(self, policy: Policy) -> AsyncIterator[None]:
        """What the policy denies is tried all the time, and nothing passes."""
        denied = [way for way, passes in policy.fates.items() if not passes]
        found: list[tuple[str, str, int]] = []
        tried = 0

        async def watch() -> None:
            nonlocal tried
            while True:
                results = await asyncio.gather(*(self.passes(*way) for way in denied))
                found.extend(way for way, passed in zip(denied, results, strict=True) if passed)
                tried += len(denied)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert found == []
        assert tried


@pytest.fixture
async def trial(scene: Scene, tmp_path: Path) -> AsyncIterator[Trial]:
    await put_right(scene.firewall, DUAL_CHAINS)
    async with serving(scene.host, tmp_path) as (api, account):
        await api.put(NAMESPACES, "default", {"metadata": {"labels": {"kubernetes.io/metadata.name": "default"}}})
        for name, node in (("pod", NODE), ("other_pod", "n2")):
            ips = [getattr(IN[family.version], name) for family in FAMILIES]
            status = {"phase": "Running", "podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
            pod = {
                "metadata": {"labels": {"name": name.replace("_", "-")}},
                "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
                "status": status,
            }
            await api.put(PODS, name.replace("_", "-"), pod)
        it = Trial(scene, api, Engine(scene.host, account))
        try:
            await it.engine.start()
            yield it
        finally:
            it.engine.kill()


async def test_packets_do_what_each_policy_says_after_a_restart_and_a_repair_of_masq(trial: Trial) -> None:
    for name, policy in POLICY.items():
        print(name)
        await trial.set(policy)
        await trial.until_enforced(policy)
        assert await trial.scene.again() == []
        damage(trial.scene)
        assert await put_right(trial.scene.firewall, DUAL_CHAINS)
        assert await trial.fates() == policy.fates


async def test_nothing_passes_while_masq_repairs_beside_the_engine_or_after_its_death(trial: Trial) -> None:
    policy = POLICY["allow a pod"]
    await trial.set(policy)
    await trial.until_enforced(policy)
    async with trial.never(policy):
        for _ in range(3):
            damage(trial.scene)
            await asyncio.sleep(0.5 * FACTOR)
            await put_right(trial.scene.firewall, DUAL_CHAINS)
        trial.engine.kill()
        await asyncio.sleep(0.5 * FACTOR)
        damage(trial.scene)
        await put_right(trial.scene.firewall, DUAL_CHAINS)
    await trial.engine.start()
    await trial.until_enforced(policy)
    assert await trial.scene.again() == []
