"""A network with backend extension: its configuration, a peer's lease, and what commands have done."""

import asyncio
import json
from pathlib import Path
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2
from tests.hosts.dataplane import Cluster, Running
from tests.patience import PATIENCE, pauses

ALLOW: Final = "--allow-extension-commands"


def network(**commands: str) -> str:
    """The configuration with these commands."""
    return json.dumps({"Network": "10.5.0.0/16", "Backend": {"Type": "extension", **commands}})


def noted(path: Path, word: str) -> str:
    """A command that writes its variables and its input to a file."""
    return f"""sh -c 'echo "{word} $SUBNET $PUBLIC_IP $(cat)" >> {path}'"""


def lines(path: Path) -> list[str]:
    """What commands have written there."""
    return path.read_text().splitlines() if path.exists() else []


async def join(cluster: Cluster, node: str, public: str, subnet: str, data: str | None = None) -> str:
    """The name of the lease that a peer takes."""
    part = lease_pb2.Subnet(cidr=subnet, public_address=public)
    if data is not None:
        part.opaque_json = json.dumps(data)
    request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[part], backend_type="extension")
    async with cluster.calls() as stub:
        name: str = (await stub.AcquireLease(request, timeout=PATIENCE)).lease.name
        return name


async def told(running: Running) -> list[str]:
    """What the journal says of commands."""
    return [event.what for event in await running.events(kinds=[pb.EVENT_KIND_COMMAND])]


async def until_told(running: Running, text: str) -> str:
    """The first entry of the journal with this text."""
    pause = pauses()
    async with asyncio.timeout(PATIENCE):
        while True:
            for what in await told(running):
                if text in what:
                    return what
            await asyncio.sleep(next(pause))
