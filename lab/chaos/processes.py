"""What is done to processes, to their clocks and certificates, and to the store."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias

from lab.chaos.scene import LEASES, SERVICES, Hit, NoEffect, Scene
from lab.cluster import CONFIG_KEY
from lab.etcd import encoded
from lab.supervise import Supervised

Act: TypeAlias = Callable[[Scene, Hit], AbstractAsyncContextManager[None]]
"""Brings a fault about; its end undoes what does not undo itself."""
_STOPPED, _RUNNING = 0.2, 0.02
_BATCH: Final = 100
"""Keys of a transaction; etcd takes 128."""
_LEASE_SECONDS: Final = 3600
_LAST: Final = 2.0
"""Seconds that certificates last which run out."""


def killed(name: str) -> Act:
    """A service of the host, with -9."""

    @asynccontextmanager
    async def act(scene: Scene, hit: Hit) -> AsyncIterator[None]:
        await scene.kill(scene.service(name, hit.host))
        yield

    return act


def frozen(name: str) -> Act:
    """A service of the host, with SIGSTOP."""

    @asynccontextmanager
    async def act(scene: Scene, hit: Hit) -> AsyncIterator[None]:
        with _stopped(scene.service(name, hit.host)):
            yield

    return act


@asynccontextmanager
async def all_killed(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """The three services of the host at once."""
    await asyncio.gather(*(scene.kill(scene.service(name, hit.host)) for name in SERVICES))
    yield


@asynccontextmanager
async def clock_stepped(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """Steps the clock up to two days, or twenty years, forward or back; and back to the truth."""
    scene.step_clock(hit.host, hit.chance.choice((2 * 86_400, 20 * 365 * 86_400)) * hit.chance.uniform(-1, 1))
    yield
    scene.step_clock(hit.host, 0.0)


@asynccontextmanager
async def certificates_expired(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """Lets the certificates of all services of the host run out under live connections; then all have to connect
    again.
    """
    scene.certificates.write(hit.host, lasts=_LAST)
    try:
        await asyncio.sleep(_LAST + 1.0)
        await scene.kill(scene.service("lease", hit.host))
        yield
        said = await asyncio.to_thread(scene.certificates.distrust, hit.host)
        if "expired" not in said:
            raise NoEffect(f"a client says of the lease service's certificate: {said or 'it is good'}")
        hit.seen.append(said)
    finally:
        scene.certificates.write(hit.host)


@asynccontextmanager
async def store_killed(scene: Scene, _: Hit) -> AsyncIterator[None]:
    """Kills etcd, with -9."""
    await scene.kill(scene.etcd)
    yield


@asynccontextmanager
async def store_frozen(scene: Scene, _: Hit) -> AsyncIterator[None]:
    """etcd, with SIGSTOP: its connections stay, and nobody answers."""
    with _stopped(scene.etcd):
        yield


@asynccontextmanager
async def store_slow(scene: Scene, _: Hit) -> AsyncIterator[None]:
    """etcd has a tenth of its time."""

    async def hamper() -> None:
        while True:
            with _stopped(scene.etcd):
                await asyncio.sleep(_STOPPED)
            await asyncio.sleep(_RUNNING)

    async with going_on(hamper()):
        yield


@asynccontextmanager
async def store_full(scene: Scene, _: Hit) -> AsyncIterator[None]:
    """etcd refuses what would take space, as it does at its quota."""
    request = {"memberID": "0", "alarm": "NOSPACE"}
    await scene.ask_etcd("/v3/maintenance/alarm", {"action": "ACTIVATE", **request})
    try:
        yield
    finally:
        await scene.ask_etcd("/v3/maintenance/alarm", {"action": "DEACTIVATE", **request})


@asynccontextmanager
async def store_emptied(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """Every lease is deleted, and in half of the cases the configuration, which comes back."""
    with_configuration = hit.chance.random() < 0.5
    await scene.delete("/coreos.com/network/" if with_configuration else LEASES)
    yield
    if with_configuration:
        await scene.put_configuration()


@asynccontextmanager
async def store_compacted(scene: Scene, _: Hit) -> AsyncIterator[None]:
    """Compacts etcd's history while all lease services are away from it, so that they cannot go on
    where they were.
    """
    services = list(scene.cluster.named("lease"))
    for service in services:
        service.signal(signal.SIGSTOP)
    try:
        await scene.kill(scene.etcd)
        header = (await scene.listed(CONFIG_KEY))["header"]
        await scene.put("/coreos.com/chaos", "")
        with suppress(Exception):  # it was compacted there already
            await scene.ask_etcd("/v3/kv/compaction", {"revision": int(header["revision"]) + 1, "physical": True})
    finally:
        for service in services:
            service.signal(signal.SIGCONT)
    yield


@asynccontextmanager
async def backend_changed(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """The next one is in the network configuration, and then in all leases."""
    await scene.change_backend(hit.backend)
    yield


@asynccontextmanager
async def key_overwritten(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """The node's key gets another node's public address, or no JSON at all."""
    lease = scene.leases[hit.host]
    other = {"PublicIP": "10.99.77.77", "BackendType": lease.backend, "BackendData": {"VtepMAC": "02:00:00:00:77:77"}}
    await scene.put(_key(str(lease.subnet)), hit.chance.choice((json.dumps(other), "{", "")))
    yield


@asynccontextmanager
async def key_deleted(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """The node has no lease any more."""
    await scene.delete(_key(str(scene.leases[hit.host].subnet)))
    yield


@asynccontextmanager
async def junk(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """Keys among the leases that are none: bad names, bad values, bad bytes."""
    values = ("", "{", "null", '{"PublicIP":"10.99.0.11"}', '{"PublicIP":"::","BackendType":"vxlan"}', "\0" * 9)
    try:
        for start in range(0, 100_000 if hit.is_full else 2_000, _BATCH):
            pairs = {f"{LEASES}junk-{start + place}": hit.chance.choice(values) for place in range(_BATCH)}
            await scene.ask_etcd("/v3/kv/txn", {"success": [_put(key, value) for key, value in pairs.items()]})
        yield
    finally:
        await scene.delete(f"{LEASES}junk-")


@asynccontextmanager
async def churn(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """Leases of nodes that nobody has come and go, two at a time."""
    taken = {lease.subnet.network_address.packed[2] for lease in scene.leases.values()}
    free = [number for number in range(1, 255) if number not in taken]
    count = 10_000 if hit.is_full else 200
    granted = await scene.ask_etcd("/v3/lease/grant", {"TTL": _LEASE_SECONDS})
    try:
        for number in range(0, count, 2):
            here = [free[(number + place) % len(free)] for place in (0, 1)]
            gone = [free[(number + place) % len(free)] for place in (-2, -1)]
            puts = [_put(_key(f"10.5.{n}.0/24"), _nobody(n, scene.backend), granted["ID"]) for n in here]
            deletions = [{"requestDeleteRange": {"key": encoded(_key(f"10.5.{n}.0/24"))}} for n in gone]
            await scene.ask_etcd("/v3/kv/txn", {"success": deletions + puts})
        yield
    finally:
        await scene.ask_etcd("/v3/lease/revoke", {"ID": granted["ID"]})


def _nobody(number: int, backend: str) -> str:
    data = {"VNI": 1, "VtepMAC": f"02:00:00:00:99:{number:02x}"}
    value = {"PublicIP": f"10.99.99.{number}", "PublicIPv6": None, "BackendType": backend}
    return json.dumps(value | ({"BackendData": data} if backend == "vxlan" else {}))


def _key(subnet: str) -> str:
    return LEASES + subnet.replace("/", "-")


def _put(key: str, value: str, lease: str = "0") -> dict[str, object]:
    return {"requestPut": {"key": encoded(key), "value": encoded(value), "lease": lease}}


@contextmanager
def _stopped(service: Supervised) -> Iterator[None]:
    service.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.signal(signal.SIGCONT)


@asynccontextmanager
async def going_on(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs the work until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
