"""An etcd that answers what etcd cannot answer: it is away as long, nothing ends, and then all is listed anew."""

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.lease.stores.etcd.client import Timing
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from tests.etcd import liar as lies
from tests.etcd.liar import Lie, lying
from tests.etcd.server import EtcdServer
from tests.services.follower import following
from tests.stores.every import asks

CONFIG: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
QUICK: Final = Timing(call=1.0, retry_first=0.05, retry_most=0.2)
LISTINGS: Final[Sequence[tuple[str, Lie]]] = [
    ("nothing", lies.nothing),
    ("garbage", lies.garbage),
    ("more without keys", lies.more_without_keys),
    ("the same keys again", lies.the_same_keys_again),
    ("keys of others", lies.keys_of_others),
    ("a revision below zero", lies.revision_of(-5)),
    ("the last revision", lies.revision_of(2**63 - 1)),
]
WATCHES: Final[Sequence[tuple[str, Lie]]] = [
    ("nothing", lies.nothing),
    ("garbage", lies.garbage),
    ("an event of the future", lies.event_of(2**63 - 1)),
    ("an event before all", lies.event_of(-1)),
    ("a revision that goes back", lies.watch_at(1)),
    ("the last revision", lies.watch_at(2**63 - 1)),
]


def name(number: int) -> str:
    return f"/net/subnets/10.5.{number}.0-24"


def put(etcd: EtcdServer, number: int) -> None:
    etcd.etcdctl("put", name(number), f'{{"PublicIP":"10.99.0.{number}"}}')


@pytest.mark.parametrize(("method", "lie"), [
    *(pytest.param("Range", lie, id=f"a listing: {what}") for what, lie in LISTINGS),
    *(pytest.param("Watch", lie, id=f"a watch: {what}") for what, lie in WATCHES),
])  # fmt: skip
async def test_untrue_answers_are_an_outage_and_a_new_listing_ends_it(
    own_etcd: EtcdServer, method: str, lie: Lie, capfd: pytest.CaptureFixture[str]
) -> None:
    own_etcd.etcdctl("put", "/net/config", CONFIG)
    put(own_etcd, 1)
    async with lying(own_etcd.endpoint) as (liar, endpoint):
        store = EtcdStore(EtcdSettings((endpoint,), "/net"), timing=QUICK)
        async with following(store) as seen:
            await seen.until(lambda f: f.connected and set(f.leases) == {"10.5.1.0-24"})
            liar.lies[method] = lie
            await liar_is_heard(own_etcd, liar, method)
            await seen.until(lambda f: not f.connected)
            assert set(seen.leases) >= {"10.5.1.0-24"}, "what was known stays"
            put(own_etcd, 3)
            liar.lies.clear()
            await seen.until(lambda f: f.connected and {"10.5.1.0-24", "10.5.3.0-24"} <= set(f.leases))
        await store.close()
    assert "Traceback" not in capfd.readouterr().err


async def liar_is_heard(etcd: EtcdServer, liar: lies.Liar, method: str) -> None:
    """A change, which a watch tells; or the end of the watch, after which all is listed."""
    if method == "Range":
        liar.lies["Watch"] = lies.garbage
    put(etcd, 2)
    async with asyncio.timeout(30):
        while not liar.told:  # noqa: ASYNC110 - the proxy is asked by others
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("method", "lie"), [
    ("Txn", lies.garbage), ("Txn", lies.nothing), ("Range", lies.more_without_keys), ("LeaseGrant", lies.garbage),
    ("LeaseGrant", lies.lasts(2**62)),
])  # fmt: skip
async def test_a_call_that_gets_an_untrue_answer_is_unavailable_and_the_next_one_succeeds(
    own_etcd: EtcdServer, method: str, lie: Lie
) -> None:
    own_etcd.etcdctl("put", "/net/config", CONFIG)
    async with lying(own_etcd.endpoint) as (liar, endpoint):
        store = EtcdStore(EtcdSettings((endpoint,), "/net"), timing=QUICK)
        liar.lies[method] = lie
        with pytest.raises(Unavailable, match="sends what no etcd sends"):
            await store.acquire(asks(1))
        liar.lies.clear()
        assert (await store.acquire(asks(1))).node == "n1"
        await store.close()
