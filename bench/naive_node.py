"""A node as one would write it in an afternoon, for benches to be compared with.

`python -m bench.naive_node ENDPOINT NAMESPACE`: watches etcd with the package etcd3's own client, and programs each
lease with pyroute2's calls. It starts with an empty table, holds no lease, and repairs nothing.
"""

import json
import queue
import sys
from ipaddress import IPv4Address

import flannelette.services.lease.stores.etcd.client  # noqa: F401 - makes etcd3 importable with today's protobuf

import etcd3  # isort: skip
from pyroute2 import IPRoute

from bench.cold_start_netlink import call
from bench.host import PROTOCOL
from flannelette.services.core.family import IPV4
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route
from lab.netns import NetworkNamespace

_PREFIX = "/coreos.com/network/subnets/"


def objects(name: str, value: bytes, ifindex: int) -> list[KernelObject]:
    """What a lease needs, in order."""
    address, length = name.split("-")
    lease = json.loads(value)
    there = IPv4Address(address).packed
    mac = bytes.fromhex(lease["BackendData"]["VtepMAC"].replace(":", ""))
    return [
        Neighbour(there, mac, IPV4.af, ifindex),
        FdbEntry(mac, IPv4Address(lease["PublicIP"]).packed, ifindex),
        Route(there, there, 0, IPV4.af, int(length), ifindex, PROTOCOL, onlink=True),
    ]


def main(endpoint: str, namespace: str) -> None:
    """Follows etcd for ever."""
    client = etcd3.client(host="127.0.0.1", port=int(endpoint.rpartition(":")[2]))
    responses: queue.SimpleQueue[object] = queue.SimpleQueue()
    client.add_watch_prefix_callback(_PREFIX, responses.put)
    with NetworkNamespace(namespace).inside():
        ip = IPRoute()
    (ifindex,) = ip.link_lookup(ifname="flannel.1")
    known: dict[str, list[KernelObject]] = {}
    print("watching", flush=True)
    while True:
        for event in responses.get().events:  # type: ignore[attr-defined]  # etcd3 has no types
            name = event.key.decode().removeprefix(_PREFIX)
            if isinstance(event, etcd3.events.PutEvent):
                for item in known.get(name, [])[:-1]:
                    call(ip, item, "del")
                known[name] = objects(name, event.value, ifindex)
                for item in known[name]:
                    call(ip, item)
            else:
                for item in reversed(known.pop(name, [])):
                    call(ip, item, "del")


if __name__ == "__main__":
    main(*sys.argv[1:])
