"""Kubernetes stores on a real kube-apiserver, and what tests ask them for."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from flannelette.services.core.leases.lease import BackendData, FamilyRequest, LeaseRequest, VxlanData
from flannelette.services.lease.stores.kube.store import KubeStore
from flannelette.services.lease.stores.kube.values import KubeSettings, Timing, annotations
from tests.kubernetes.api_server import ApiServer

V4 = '{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}'
DUAL = '{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}'
QUICK = Timing(retry_first=0.05, retry_most=0.5, patch_pause=0.1, patch_total=1.0, pod_cidr=5.0)
MAC, MAC6 = "02:00:00:00:00:01", "02:00:00:00:00:06"
FLANNEL = "flannel.alpha.coreos.com/"
MANAGED = {f"{FLANNEL}kube-subnet-manager": "true", f"{FLANNEL}public-ip": "192.168.0.1"}

Open = Callable[..., KubeStore]


@asynccontextmanager
async def stores_on(kube: ApiServer, directory: Path) -> AsyncIterator[Open]:
    """Opens stores on the API server; closes them in the end."""
    async with AsyncExitStack() as stack:

        def open_store(
            network: str = V4,
            *,
            prefix: str = "",
            node: str = "",
            condition: bool = True,
            timing: Timing = QUICK,
            written: float = 0,
        ) -> KubeStore:
            path = directory / "net-conf.json"
            path.write_text(network)
            os.utime(path, (written, written))
            keys = annotations(prefix) if prefix else annotations()
            settings = KubeSettings(annotations=keys, network_file=path, sets_condition=condition)
            store = KubeStore(settings, node=node, timing=timing, access=kube.access())
            stack.push_async_callback(store.close)
            return store

        yield open_store


@pytest.fixture
async def opened(kube: ApiServer, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores on a real kube-apiserver."""
    async with stores_on(kube, tmp_path) as open_store:
        yield open_store


def asks(node: str, kind: str = "vxlan", *, mac: str = MAC, public: str = "192.168.0.1") -> LeaseRequest:
    data = VxlanData(1, mac) if kind == "vxlan" else None
    return LeaseRequest(node, kind, (FamilyRequest(ip_address(public), data),))


def asks_dual(
    node: str, kind: str, data: BackendData | None = None, data6: BackendData | None = None
) -> LeaseRequest:
    parts = (FamilyRequest(ip_address("192.168.0.1"), data), FamilyRequest(ip_address("fd00::1"), data6))
    return LeaseRequest(node, kind, parts)


def flannels(kube: ApiServer, node: str) -> dict[str, str]:
    return {key.removeprefix(FLANNEL): text for key, text in kube.annotations(node).items() if FLANNEL in key}
