"""Calls of the etcd store that were done, but whose answers were lost: repeated, they change nothing more."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.stores.etcd.client import Cluster
from flannelette.services.lease.stores.etcd.store import EtcdStore
from tests.etcd.expected import truth_of
from tests.etcd.keys import CONFIG_PUT, opened, wants, write
from tests.etcd.server import EtcdServer
from tests.faults.cable import Cable

SOAK: Final = os.environ.get("FLANNELETTE_SOAK") == "1"
MOST_CALLS: Final = 12
"""More than any operation asks of etcd."""

Operation = Callable[[EtcdStore, Lease], Awaitable[object]]
OPERATIONS: Final[dict[str, tuple[Operation, list[str]]]] = {
    "acquire": (lambda store, _: store.acquire(wants("n2", "10.99.0.2")), ["n1", "n2"]),
    "acquire again": (lambda store, _: store.acquire(wants()), ["n1"]),
    "move": (lambda store, _: store.acquire(wants(address="10.99.0.3")), ["n1"]),
    "renew": (lambda store, lease: store.renew("n1", lease.name), ["n1"]),
    "release": (lambda store, lease: store.release("n1", lease.name), []),
}
"""What is done with the lease of n1, and who has one afterwards."""


@pytest.fixture
async def cable(own_etcd: EtcdServer) -> AsyncIterator[Cable]:
    await write(own_etcd, CONFIG_PUT)
    made = Cable(own_etcd)
    await made.mend()
    yield made
    made.cut()


@pytest.mark.parametrize("spare", [False, True] if SOAK else [False], ids="spare={}".format)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_whichever_answer_is_lost_the_operation_is_done_once(
    own_etcd: EtcdServer, cable: Cable, monkeypatch: pytest.MonkeyPatch, operation: str, spare: bool
) -> None:
    """Every call that it makes to etcd in turn. Nothing is left over: no lease, no holder, no etcd lease."""
    asked = lost = 0
    ask = Cluster.ask

    async def ask_and_break(self: Cluster, call: str, request: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == lost:
            cable.break_at_answer()
        return await ask(self, call, request)

    monkeypatch.setattr(Cluster, "ask", ask_and_break)
    endpoints = (cable.endpoint, own_etcd.endpoint) if spare else (cable.endpoint,)
    carry_out, nodes_after = OPERATIONS[operation]
    for lost in range(1, MOST_CALLS):
        asked = MOST_CALLS
        async with opened(*endpoints) as store:
            lease = await store.acquire(wants())
            asked, connections = 0, cable.connections
            await carry_out(store, lease)
        was_asked, asked = asked, MOST_CALLS
        assert spare or (cable.connections > connections) == (was_asked >= lost), "it did break"
        assert truth_of(own_etcd).nodes() == nodes_after
        assert len(own_etcd.etcdctl("lease", "list").splitlines()) == 1 + len(nodes_after)  # and a headline
        async with opened(own_etcd.endpoint) as store:
            for name, held in truth_of(own_etcd).served.items():
                await store.release(held.node, name)
        if was_asked < lost:
            return
    pytest.fail("it asks more often than was tried")
