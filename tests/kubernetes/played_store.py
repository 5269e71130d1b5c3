"""A Kubernetes store on an API server that the test plays."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, VxlanData
from flannelette.services.lease.stores.kube.store import KubeStore
from flannelette.services.lease.stores.kube.values import KubeSettings, Timing
from tests.kubernetes.played_api import ScriptedApi, node, scripted_api
from tests.services.follower import Follower

QUICK = Timing(
    call=10.0,
    page=10.0,
    silence=0.2,
    retry_first=0.02,
    retry_most=0.1,
    patch_pause=0.02,
    patch_total=0.3,
    pod_cidr=0.2,
)
USUAL = Timing()
"""As a lease service has it."""
IMPATIENT = replace(QUICK, call=0.2, page=0.2)
"""For whom there is no answer."""
REQUEST = LeaseRequest("n0", "vxlan", (FamilyRequest(ip_address("192.168.0.77"), VxlanData(1, "02:00:00:00:00:77")),))

Open = Callable[..., KubeStore]


@asynccontextmanager
async def stores_on_script(api: ScriptedApi, directory: Path) -> AsyncIterator[Open]:
    """Opens stores on it; closes them in the end."""
    path = directory / "net-conf.json"
    path.write_text('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}')
    async with AsyncExitStack() as stack:

        def open_store(timing: Timing = QUICK) -> KubeStore:
            store = KubeStore(KubeSettings(network_file=path), timing=timing, access=api.access)
            stack.push_async_callback(store.close)
            return store

        yield open_store


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    """With seven nodes."""
    async with scripted_api(*map(node, range(7))) as made:
        yield made


@pytest.fixture
async def scripted(api: ScriptedApi, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores on it."""
    async with stores_on_script(api, tmp_path) as open_store:
        yield open_store


def mac_of(lease: Lease) -> str:
    data = lease.subnets[0].data
    assert isinstance(data, VxlanData)
    return data.mac


def is_version(name: str, version: int) -> Callable[[Follower], bool]:
    return lambda f: name in f.leases and mac_of(f.leases[name]) == f"02:00:00:00:{version:02x}:01"
