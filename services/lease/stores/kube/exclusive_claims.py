"""One MAC or address belongs to one Node: a second one is refused before its write, or withdrawn after it.

Kubernetes has no transaction over two Node objects. But its watch delivers writes in their order: with our own,
it has delivered all before. So of two nodes that write at once, at least the later one sees the other.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.ipam.allocation import held_by
from flannelette.services.core.ipam.claims import claim_of
from flannelette.services.core.leases.conflicts import Identity, identities_of, rank_of
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.stores.kube.client import KubeClient
from flannelette.services.lease.stores.kube.node_leases import lease_of, withdrawal_patch
from flannelette.services.lease.stores.kube.settings import Annotations
from flannelette.services.lease.stores.kube.values import Node, NodeProblem, Problem
from flannelette.services.lease.stores.kube.watch import Mirror
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_TOLD_SECONDS: Final = 3.0
"""The longest time that the watch takes to deliver our own write."""


class ExclusiveClaims:
    """Refuses what another living node publishes, for one store."""

    def __init__(self, client: KubeClient, mirror: Mirror, keys: Annotations, network: NetworkConfig) -> None:
        self._client, self._mirror, self._keys, self._network = client, mirror, keys, network

    async def require_none(self, node: Node, patch: Mapping[str, Any] | None) -> None:
        """Raises NodeProblem if a node that is alive has what this one would publish by the patch, and was first.

        What a node publishes that is not alive is withdrawn: else it would go first for its age.
        """
        news = patch["metadata"]["annotations"] if patch else {}
        with suppress(InvalidInput):
            wanted = lease_of(
                replace(node, annotations={**(node.annotations or {}), **news}), self._network, self._keys
            )
            mine = None if patch else self._mirror.leases.get(node.name)
            for rival, identity in self._rivals(wanted) if wanted else ():
                if mine is not None and rank_of(mine) < rank_of(rival):
                    continue
                document = await self._client.read_node(rival.name)
                if _is_alive(document):
                    raise _refused(rival, identity, node.name)
                if gone := withdrawal_patch(
                    replace(node, name=rival.name, annotations=_annotations(document)), self._keys
                ):
                    log.warning("a lease is withdrawn: its node is not alive", node=rival.name, rival=node.name)
                    await self._client.patch_node(rival.name, gone)

    async def require_none_since(self, node: Node, lease: Lease) -> None:
        """The same after the write: who did not write in an earlier second than the other takes it back."""
        if not self._mirror.position:
            return  # nobody watches
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_SECONDS):
                await self._mirror.lease_like(lease)
        mine = self._mirror.leases.get(node.name)
        for rival, identity in self._rivals(lease):
            if mine is None or not mine.claim_order < rival.claim_order:
                if gone := withdrawal_patch(node, self._keys):
                    await self._client.patch_node(node.name, gone)
                raise _refused(rival, identity, node.name)

    def _rivals(self, lease: Lease) -> Iterator[tuple[Lease, Identity]]:
        """Other nodes' leases that have something of this one, with what that is. Looks at all."""
        wanted = set(identities_of(lease))
        for other in list(self._mirror.leases.values()):
            if other.name != lease.name and (shared := wanted.intersection(identities_of(other))):
                yield other, min(shared, key=repr)


def _refused(rival: Lease, identity: Identity, node: str) -> NodeProblem:
    text = held_by(claim_of(rival), identity, node, f"delete the Node {rival.name}, if it is gone")
    return NodeProblem(node, Problem.CLAIMED_TWICE, text)


def _is_alive(document: Mapping[str, Any]) -> bool:
    """Kubernetes says `Unknown` of a node whose kubelet has not reported for some 40 s."""
    conditions = document.get("status", {}).get("conditions") or []
    return not any(each.get("type") == "Ready" and each.get("status") == "Unknown" for each in conditions)


def _annotations(document: Mapping[str, Any]) -> Mapping[str, str]:
    return document.get("metadata", {}).get("annotations") or {}
