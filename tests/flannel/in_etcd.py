"""What a flanneld does in etcd, call by call: for tests of living beside one.

It knows nothing of holders and sessions, guards only the making of a key, and takes a new etcd lease each time.
"""

import random
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Final

from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.family import Network
from flannelette.services.core.leases.flannel_json import parse_key, parse_lease
from flannelette.services.core.leases.lease import lease_key
from flannelette.services.core.network import FamilyNetwork, parse_network
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.prefix import Keyspace
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.values import EtcdLeaseGone, Put, Transaction, Unchanged
from tests.etcd.keys import item_at

_LIVES: Final = 86_400
_CANDIDATES: Final = 100
_RACES: Final = 10


class Exited(Exception):
    """It gives up. Whoever looks after it starts it again."""


@dataclass
class Flanneld:
    """One host's. It survives its processes: `previous` is what its subnet.env says."""

    settings: EtcdSettings
    timing: Timing
    address: str
    mac: str
    chance: random.Random
    previous: IPv4Network | None = None
    name: str = ""
    """The lease that it believes to hold; empty: it has never had one."""
    since: int = 0
    """The revision that gave it that lease, or gave it back to a new process."""
    keys: Keyspace = field(init=False)

    def __post_init__(self) -> None:
        self.keys = Keyspace(self.settings.prefix)
        self._client = EtcdClient(self.settings, self.timing, "flanneld")

    @property
    def value(self) -> bytes:
        """Byte for byte as captured from v0.20.2, and as v0.28 still writes it."""
        data = f'{{"VNI":1,"VtepMAC":"{self.mac}"}}'
        return (
            f'{{"PublicIP":"{self.address}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{data}}}'.encode()
        )

    async def start(self) -> None:
        """A new process gets its lease. Raises Exited."""
        try:
            config = await item_at(self._client, self.keys.config)
            if config is None:
                raise Exited("there is no configuration")
            network = parse_network(config.value.decode()).families[0]
            for _ in range(_RACES):
                if await self._acquire(network):
                    return
        except (Unavailable, EtcdLeaseGone) as error:
            raise Exited(str(error)) from None
        raise Exited("it lost too many races")

    async def renew(self) -> None:
        """Puts its key again, on a new etcd lease; the old one is left to run out. Raises Exited."""
        try:
            await self._put(self.name)
        except (Unavailable, EtcdLeaseGone) as error:
            raise Exited(str(error)) from None

    async def close(self) -> None:
        await self._client.close()

    async def _acquire(self, network: FamilyNetwork) -> bool:
        leases = await self._leases()
        own = next((name for name, (address, _) in leases.items() if address == self.address), "")
        if own and network.fits(leases[own][1]):
            self._hold(own, await self._put(own))
            return True
        if own:
            raise AssertionError("the tests change no configuration")
        taken = [cidr for _, cidr in leases.values()]
        if self.previous and self.previous not in taken and network.fits(self.previous):
            return await self._create(self.previous)
        return await self._create(self._choose(network, taken))

    async def _leases(self) -> dict[str, tuple[str, Network]]:
        """Address and subnet of all that are leases, in the order of their keys; the others are ignored."""
        found: dict[str, tuple[str, Network]] = {}
        async for page in self._client.pages(self.keys.subnets[:-1]):
            for item in page.items:
                with suppress(InvalidInput):
                    name = item.key.removeprefix(self.keys.subnets).decode()
                    lease = parse_lease(name, item.value)
                    found[name] = str(lease.subnets[0].public_address), parse_key(name)[0]
        return found

    def _choose(self, network: FamilyNetwork, taken: list[Network]) -> Network:
        first, last, length = network.subnet_min, network.subnet_max, network.subnet_length
        assert first is not None
        assert last is not None
        free: list[Network] = []
        for start in range(int(first), int(last) + 1, 1 << (32 - length)):
            cidr = IPv4Network((start, length))
            if not any(cidr.overlaps(other) for other in taken if isinstance(other, IPv4Network)):
                free.append(cidr)
            if len(free) == _CANDIDATES:
                break
        if not free:
            raise Exited("out of subnets")
        return self.chance.choice(free)

    async def _create(self, cidr: Network) -> bool:
        name = lease_key([cidr])
        etcd_lease = await self._grant()
        key = self.keys.subnet(name)
        try:
            transaction = Transaction((Unchanged(key, 0),), (Put(key, self.value, etcd_lease),))
            revision = await self._client.transact(transaction)
        except Unavailable:
            await self._client.revoke(etcd_lease)
            raise
        if not revision:
            await self._client.revoke(etcd_lease)
            return False
        self._hold(name, revision)
        return True

    async def _put(self, name: str) -> int:
        etcd_lease = await self._grant()
        return await self._client.transact(Transaction((), (Put(self.keys.subnet(name), self.value, etcd_lease),)))

    async def _grant(self) -> int:
        number = self.chance.randrange(1, 1 << 63)
        await self._client.grant(number, _LIVES)
        return number

    def _hold(self, name: str, revision: int) -> None:
        if name != self.name:
            self.since = revision
        (cidr,) = parse_key(name)
        assert isinstance(cidr, IPv4Network)
        self.name, self.previous = name, cidr
