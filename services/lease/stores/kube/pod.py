"""The node that our pod runs on, for manifests that name the pod but not the node, as flannel's do."""

import asyncio
import os
from collections.abc import Mapping

from services.core.errors import Misconfigured, Unavailable
from services.lease.stores.kube.access import Access, find_access
from services.lease.stores.kube.client import KubeClient
from services.lease.stores.kube.records import Gone, Timing
from services.lease.stores.kube.settings import KubeSettings


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
    client = KubeClient(access or find_access(settings), timing, settings.annotations.prefix, "flannelette-lease")
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
