"""The naive way to hand out leases, for the bench `acquire`: everything is listed for each acquisition.

`python -m bench.acquire_naive` is our lease service, but that an acquisition works as flanneld's: list, look for the
own address, choose among the first hundred free subnets, create the key if it does not exist, else begin again.
"""

import asyncio
import random
import sys
from dataclasses import replace

from flannelette.services.core.errors import NotYet
from flannelette.services.core.ipam import SubnetPool, choose_subnets
from flannelette.services.core.leases.flannel_json import format_value, parse_lease
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Subnet, lease_key
from flannelette.services.core.network import parse_network
from flannelette.services.lease.main import main
from flannelette.services.lease.stores.etcd.prefix import KeyKind
from flannelette.services.lease.stores.etcd.store import EtcdStore
from flannelette.services.lease.stores.etcd.values import Put, Transaction, Unchanged

_turn = asyncio.Lock()
"""Hundreds of listings at once would only need more memory."""


async def acquire(calls: EtcdStore, request: LeaseRequest) -> Lease:
    """One listing, parsed anew, for each try."""
    client, keys = calls._transactor._client, calls._replica.prefix.keyspace
    async with _turn:
        while True:
            items = [item async for page in client.pages(keys.root) for item in page.items]
            leases, network = list[Lease](), None
            for item in items:
                kind, name = keys.classify(item.key)
                if kind is KeyKind.SUBNET:
                    leases.append(parse_lease(name, item.value))
                elif kind is KeyKind.CONFIG:
                    network = parse_network(item.value.decode())
            if network is None:
                raise NotYet("there is no network configuration")
            address = request.parts[0].public_address
            own = next((lease for lease in leases if address in lease.addresses), None)
            if own is not None:
                return own
            pool = SubnetPool(network)
            for cidr in (cidr for lease in leases for cidr in lease.cidrs):
                pool.add(cidr)
            (cidr,) = choose_subnets(pool, request, random.randrange)
            lease = Lease(
                lease_key([cidr]), "", (Subnet(cidr, address, request.parts[0].data),), request.backend_type
            )
            number = random.randrange(1, 1 << 63)  # noqa: S311 - must be unused, not secret
            await client.grant(number, 86_400)
            put = Put(keys.subnet(lease.name), format_value(lease).encode(), number)
            if await client.transact(Transaction((Unchanged(put.key, 0),), (put,))):
                return replace(lease, node=request.node)


if __name__ == "__main__":
    setattr(EtcdStore, "acquire", acquire)  # noqa: B010 - the whole point of this program
    sys.exit(main())
