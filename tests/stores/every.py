"""Each kind of store that hands out subnets, with what it needs around it: for tests that are for all of them."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, Protocol

import pytest

from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, VxlanData, WireguardData
from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.stores.embedded import EmbeddedStore
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from flannelette.services.lease.stores.etcd.values import Delete, Put, Transaction
from flannelette.services.lease.stores.store import Store
from tests.etcd.server import EtcdServer

HOUR: Final = 3600.0
NETWORK = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
OTHER_NETWORK = '{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}'
FOUR_SUBNETS = '{"Network":"10.5.0.0/24","SubnetLen":26,"SubnetMin":"10.5.0.0","Backend":{"Type":"vxlan"}}'
DUAL = '{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}'


class World(Protocol):
    """Where one kind of store keeps things."""

    async def write_network(self, text: str | None) -> None:
        """The configuration is this; None: there is none."""

    def open(self, lease_seconds: int = 86_400, *, later: bool = False) -> Store:
        """The store, as after a restart of its process; `later`: an hour later, and nobody was seen since."""

    async def close(self) -> None:
        """Frees everything."""


@dataclass
class EmbeddedWorld:
    directory: Path
    store: EmbeddedStore | None = None

    @property
    def network_file(self) -> Path:
        return self.directory / "net-conf.json"

    async def write_network(self, text: str | None) -> None:
        if text is None:
            self.network_file.unlink(missing_ok=True)
        else:
            self.network_file.write_text(text)

    def open(self, lease_seconds: int = 86_400, *, later: bool = False) -> Store:
        if self.store is not None:
            self.store._database.close()
        path = self.directory / "leases.db"
        hours = 0.0
        connected_nodes = ConnectedNodes(clock=lambda: hours)
        hours = HOUR if later else 0.0
        self.store = EmbeddedStore(
            path,
            net_config_path=self.network_file,
            lease_seconds=lease_seconds,
            connected_nodes=connected_nodes,
            clock=lambda: time.time() + hours,
        )
        return self.store

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()


@dataclass
class EtcdWorld:
    settings: EtcdSettings
    stores: list[EtcdStore] = field(default_factory=list)

    @classmethod
    def on(cls, server: EtcdServer) -> "EtcdWorld":
        """Under a prefix of its own."""
        return cls(EtcdSettings((server.endpoint,), f"/{uuid.uuid4().hex}"))

    async def write_network(self, text: str | None) -> None:
        client = EtcdClient(self.settings, Timing(), "test")
        key = f"{self.settings.prefix}/config".encode()
        await client.transact(Transaction((), (Delete(key) if text is None else Put(key, text.encode()),)))
        await client.close()

    def open(self, lease_seconds: int = 86_400, *, later: bool = False) -> Store:
        alive_seconds = 0.0 if later else 60.0
        self.stores.append(EtcdStore(self.settings, lease_seconds=lease_seconds, alive_seconds=alive_seconds))
        return self.stores[-1]

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


@pytest.fixture(params=["embedded", "etcd"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made: World
    if request.param == "embedded":
        made = EmbeddedWorld(tmp_path)
    else:
        server: EtcdServer = request.getfixturevalue("etcd")
        made = EtcdWorld.on(server)
    await made.write_network(NETWORK)
    yield made
    await made.close()


def asks(number: int, *, node: str = "", mac: int = 0, previous: str = "") -> LeaseRequest:
    """What node `n<number>` with address 10.99.0.<number> asks for."""
    data = VxlanData(1, f"02:00:00:00:00:{mac or number:02x}")
    part = FamilyRequest(ip_address(f"10.99.0.{number}"), data, ip_network(previous) if previous else None)
    return LeaseRequest(node or f"n{number}", "vxlan", (part,))


def asks_wireguard(node: str, key: str, *, address: str = "10.99.0.9", kind: str = "wireguard") -> LeaseRequest:
    """What a node behind the NAT with this address asks for; `key` is a letter."""
    data = WireguardData(key * 43 + "=", 51820) if kind == "wireguard" else VxlanData(1, f"02:00:00:00:00:0{key}")
    return LeaseRequest(node, kind, (FamilyRequest(ip_address(address), data),))


def told(lease: Lease) -> Lease:
    """As the watch tells it: the time is the holder's business."""
    return lease.with_time(None)
