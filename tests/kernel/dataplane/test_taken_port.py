"""A UDP port that another program has: its process is named, with the command that ends it."""

import asyncio
import os
import socket

from tests.hosts.dataplane import VXLAN, cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE


async def test_the_process_that_has_the_port_of_vxlan_is_named(netns: NetworkNamespace) -> None:
    with netns.inside():
        thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with cluster_in(netns, VXLAN) as cluster, thief:
        thief.bind(("0.0.0.0", 8472))  # noqa: S104 - in a namespace of its own
        async with cluster.dataplane() as running:
            said = f"(process {os.getpid()}): end it with `kill {os.getpid()}`"
            async with asyncio.timeout(PATIENCE):
                while said not in str((await running.status()).reasons):  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(0.05)
            thief.close()
            await running.until()
