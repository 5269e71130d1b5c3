"""Writes to Node objects, stubborn as flannel: every 3 s for half a minute."""

import asyncio
from collections.abc import Mapping
from typing import Any

from services.core.errors import NotYet, Unavailable
from services.lease.stores.kube.client import KubeClient
from services.lease.stores.kube.records import Busy, Gone, Timing
from services.runtime.logs import get_logger

log = get_logger()


async def read(client: KubeClient, name: str) -> dict[str, Any]:
    """The Node object, whole. Raises NotYet if there is none, Unavailable."""
    try:
        return await client.read_node(name)
    except Gone:
        raise _no_node(name) from None


async def write(client: KubeClient, name: str, patch: Mapping[str, Any], timing: Timing) -> dict[str, Any]:
    """Merges the patch into the Node object; returns what it is now. Raises NotYet if there is none, Unavailable.

    A patch whose answer is lost may have happened; done twice it changes nothing more.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timing.patch_total
    while True:
        try:
            return await client.patch_status(name, patch)
        except Gone:
            raise _no_node(name) from None
        except Unavailable as error:
            pause = max(timing.patch_pause, error.seconds if isinstance(error, Busy) else 0)
            if loop.time() + pause >= deadline:
                raise
            log.warning("cannot write to the node; trying again", node=name, reason=str(error), seconds=pause)
            await asyncio.sleep(pause)


def _no_node(name: str) -> NotYet:
    return NotYet(
        f"there is no node {name} in Kubernetes: wait for its kubelet to register it, or correct --node (NODE_NAME)"
    )
