"""Calls about one Node object, tried again every 3 s for half a minute as flannel does; and the node of our pod."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from flannelette.services.core.errors import Misconfigured, NotYet, Unavailable
from flannelette.services.lease.stores.kube.api_server import Access, KubeSettings, find_access
from flannelette.services.lease.stores.kube.client import KubeClient
from flannelette.services.lease.stores.kube.values import Busy, Gone, Timing
from flannelette.services.runtime.telemetry.logs import get_logger

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


async def node_of_our_pod(
    settings: KubeSettings,
    environment: Mapping[str, str] = os.environ,
    *,
    timing: Timing | None = None,
    access: Access | None = None,
) -> str:
    """The node of the pod POD_NAMESPACE/POD_NAME; empty where NODE_NAME is set, or these are not.

    Asks every 3 s for half a minute. Raises Misconfigured if there is no such pod, Unavailable.
    """
    namespace, pod = environment.get("POD_NAMESPACE", ""), environment.get("POD_NAME", "")
    if environment.get("NODE_NAME") or not (namespace and pod):
        return ""
    timing = timing or Timing()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timing.patch_total
    client = KubeClient(access or find_access(settings), timing, settings.annotations, "flannelette-lease")
    try:
        while True:
            try:
                return await client.node_of_pod(namespace, pod)
            except Gone as error:
                raise Misconfigured(
                    f"cannot tell the node from POD_NAMESPACE={namespace} and POD_NAME={pod} ({error}): correct "
                    "them, or set NODE_NAME"
                ) from None
            except Unavailable:
                if loop.time() + timing.patch_pause >= deadline:
                    raise
                await asyncio.sleep(timing.patch_pause)
    finally:
        await client.close()
