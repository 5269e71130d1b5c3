"""Node objects as large clusters have them, and an API server of our own that lists them: for benches.

Run as a program it serves until it is ended: `python -m bench.kube_nodes NODES`; its first line is the URL.
"""

import asyncio
import json
import sys
from typing import Any, Final

from aiohttp import web

_PREFIX: Final = "flannel.alpha.coreos.com/"
PAGE: Final = 500
"""Nodes in a page of client-go, and of the peers."""
_SIZES: Final = (50, PAGE)
"""Nodes in a page: in ours, and in that of the peers."""
MOST_NODES: Final = 65_000
"""So many /24 podCIDRs has 10.0.0.0/8."""


def node(number: int, version: int = 1) -> dict[str, Any]:
    """The Node of this number, some 14 KB: labels, managedFields, conditions, 50 images."""
    cidr = f"10.{number >> 8}.{number & 255}.0/24"
    managed = {"manager": "kubelet", "fieldsV1": {f"f:field-{index}": {"f:x": {}} for index in range(80)}}
    return {
        "metadata": {
            "name": f"node-{number}",
            "uid": f"{number:08d}-0000-4000-8000-000000000000",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "labels": {f"example.com/label-{index}": f"value-{index}" for index in range(15)},
            "annotations": {
                f"{_PREFIX}backend-data": f'{{"VNI":1,"VtepMAC":"02:00:{number >> 8:02x}:{number & 255:02x}:00:01"}}',
                f"{_PREFIX}backend-type": "vxlan",
                f"{_PREFIX}kube-subnet-manager": "true",
                f"{_PREFIX}public-ip": f"172.{16 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": [managed, managed],
        },
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {
            "conditions": [
                {
                    "type": f"Condition{index}",
                    "status": "False",
                    "lastHeartbeatTime": "2026-01-31T12:00:00Z",
                    "lastTransitionTime": "2026-01-31T12:00:00Z",
                    "reason": "KubeletHasSufficientMemory",
                    "message": "kubelet has sufficient memory available, and more of the like",
                }
                for index in range(5)
            ],
            "images": [
                {"names": [f"registry.example/team/image-{index}@sha256:{'a' * 64}"], "sizeBytes": 1000 * index}
                for index in range(50)
            ],
        },
    }


def _page(start: int, size: int, nodes: int) -> bytes:
    end = min(start + size, nodes)
    metadata = {"resourceVersion": "1"} | ({"continue": str(end)} if end < nodes else {})
    items = [node(number) for number in range(start, end)]
    page = {"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items}
    return json.dumps(page, separators=(",", ":")).encode()


async def _serve(nodes: int) -> None:
    pages = {(start, size): _page(start, size, nodes) for size in _SIZES for start in range(0, nodes, size)}

    async def listing(request: web.Request) -> web.Response:
        key = int(request.query.get("continue") or 0), int(request.query["limit"])
        return web.Response(body=pages[key], content_type="application/json")

    app = web.Application()
    app.router.add_get("/api/v1/nodes", listing)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
