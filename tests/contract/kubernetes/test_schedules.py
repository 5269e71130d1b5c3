"""Random schedules: nodes come, change and go while the API server fails; in the end the table is what it holds."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import parse_network
from flannelette.services.lease.stores.kube.store import KubeStore, lease_of
from flannelette.services.lease.stores.kube.values import KubeSettings, Timing, annotations, read_node
from tests.kubernetes.played_api import PREFIX, Document, ScriptedApi, answer, cut, node, scripted_api, text
from tests.services.follower import following

SCHEDULES = 300 if os.environ.get("FLANNELETTE_SOAK") else 6
STEPS = 60
NETWORK = '{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}'
TIMING = Timing(call=2.0, page=2.0, silence=1.0, retry_first=0.005, retry_most=0.02)
KEYS = annotations()


def annotated(document: Document, **annotations_: str) -> Document:
    document["metadata"]["annotations"] |= {PREFIX + key.replace("_", "-"): t for key, t in annotations_.items()}
    return document


class Schedule:
    """One, from a seed."""

    def __init__(self, api: ScriptedApi, seed: int) -> None:
        self.api = api
        self.random = random.Random(seed)  # noqa: S311 - a schedule that can be repeated
        self.faults = (answer(500, "no"), answer(503, "no"), answer(410, "old"), cut, text("{"), text("<html>"))

    def step(self) -> None:
        choices: tuple[tuple[int, Callable[[], None]], ...] = (
            (10, self.put),
            (4, self.delete),
            (2, self.unmanage),
            (2, self.poison),
            (2, self.move),
            (3, self.end),
            (2, self.fail),
            (1, self.compact),
            (1, self.bookmark),
        )
        weights, things = zip(*choices, strict=True)
        self.random.choices(things, weights)[0]()

    def number(self) -> int:
        return self.random.randrange(12)

    def put(self) -> None:
        self.api.put(node(self.number(), version=self.random.randrange(100)))

    def delete(self) -> None:
        if self.api.nodes:
            self.api.delete(self.random.choice(sorted(self.api.nodes)))

    def unmanage(self) -> None:
        self.api.put(annotated(node(self.number()), kube_subnet_manager="false"))

    def poison(self) -> None:
        self.api.put(annotated(node(self.number()), public_ip="nonsense"))

    def move(self) -> None:
        """Deleted and made again with another podCIDR."""
        number = self.number()
        if f"n{number}" in self.api.nodes:
            self.api.delete(f"n{number}")
        document = node(number)
        document["spec"] = {"podCIDRs": [f"10.{200 + self.random.randrange(50)}.{number}.0/24"]}
        self.api.put(document)

    def end(self) -> None:
        for watch in self.api.watches:
            watch.end()

    def fail(self) -> None:
        kind = self.random.choice(("list", "continue", "watch"))
        self.api.faults[kind] += [self.random.choice(self.faults)]
        self.end()

    def compact(self) -> None:
        self.api.compacted = self.api.version
        self.api.history.clear()
        self.end()

    def bookmark(self) -> None:
        for watch in self.api.watches:
            watch.bookmark(self.api.version)


@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_in_the_end_the_table_is_what_the_api_holds(seed: int, tmp_path: Path) -> None:
    (tmp_path / "net-conf.json").write_text(NETWORK)
    async with scripted_api(*map(node, range(5))) as api:
        api.page = 3
        schedule = Schedule(api, seed)
        settings = KubeSettings(network_file=tmp_path / "net-conf.json")
        store = KubeStore(settings, timing=TIMING, access=api.access)
        async with closed_in_the_end(store), following(store) as seen:
            for _ in range(STEPS):
                schedule.step()
                await asyncio.sleep(schedule.random.choice((0, 0, 0, 0.002, 0.02)))
            api.faults.clear()
            for name in sorted(api.nodes):  # a refused node may keep an older lease: that is another test's business
                if is_refused(api.nodes[name]):
                    api.put(node(int(name[1:])))
            wanted = {name: lease for name, document in api.nodes.items() if (lease := held(document))}
            await seen.until(lambda f: f.connected and f.leases == wanted and not f.refused)
            assert (await store.relist()).leases == wanted


@asynccontextmanager
async def closed_in_the_end(store: KubeStore) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await store.close()


def held(document: Document) -> Lease | None:
    network = parse_network(NETWORK, leases_subnets=False)
    return lease_of(read_node(document, KEYS), network, KEYS)


def is_refused(document: Document) -> bool:
    try:
        held(document)
    except InvalidInput:
        return True
    return False
