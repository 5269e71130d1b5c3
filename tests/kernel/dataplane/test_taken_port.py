"""A UDP port that another program has: its process is named, with the command that ends it."""

import os
import socket

from flannelette.services.dataplane.diagnose.host_programs import taken_port
from tests.hosts.dataplane import VXLAN, cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.waiting import contains, eventually


async def test_the_process_that_has_the_port_of_vxlan_is_named(netns: NetworkNamespace) -> None:
    with netns.inside():
        thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with cluster_in(netns, VXLAN) as cluster, thief:
        thief.bind(("0.0.0.0", 8472))  # noqa: S104 - in a namespace of its own
        async with cluster.dataplane() as running:
            said = f"(process {os.getpid()}); cure: kill {os.getpid()}"
            await eventually(running.reasons, contains(said))
            thief.close()
            await running.until()


def test_who_has_a_port_of_ike_in_charons_place_is_named(netns: NetworkNamespace) -> None:
    with netns.inside():
        assert taken_port(0) is None
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as thief:
            thief.bind(("::", 4500))
            taken = taken_port(0)
        assert taken is not None
        assert (taken[0], taken[1].pid) == (4500, os.getpid())
