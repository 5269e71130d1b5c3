"""The etcd store and much of everything: values of 1.4 MB, and answers beyond what is taken at once."""

from typing import Final

import pytest

from flannelette.services.lease.stores.etcd import client
from flannelette.services.lease.stores.etcd.values import Put
from tests.etcd.keys import CONFIG_PUT, PREFIX, lease_delete, lease_put, name, opened, wants, write
from tests.etcd.server import EtcdServer
from tests.faults.cable import Cable
from tests.services.follower import following

ALMOST_TOO_LARGE: Final = b"x" * 1_400_000
"""etcd takes no request of more than 1.5 MiB."""


def poison(number: int) -> Put:
    return Put(f"{PREFIX}/subnets/10.5.{number}.0-24".encode(), ALMOST_TOO_LARGE)


@pytest.mark.parametrize("most", [client.LARGEST_MESSAGE, 4 << 20], ids=["at once", "in smaller pages"])
async def test_values_of_more_than_a_megabyte_are_refused_and_hide_nothing(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(client, "LARGEST_MESSAGE", most)
    await write(own_etcd, CONFIG_PUT, *(poison(number) for number in range(8)), lease_put(100), lease_put(200))
    async with opened(own_etcd.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        assert set(seen.leases) == {name(100), name(200)}
        assert set(seen.refused) == {name(number) for number in range(8)}
        assert all(len(reason) < 500 for reason in seen.refused.values()), "the reason does not quote it"
        there = {*seen.refused, *seen.leases}
        assert (await store.acquire(wants())).name not in there
        await write(own_etcd, poison(200), lease_delete(100))
        await seen.until(lambda f: name(200) in f.refused and name(100) not in f.leases)
        assert name(200) in seen.leases, "what it held before stays"


async def test_a_watch_that_has_missed_more_than_we_take_at_once_lists_anew(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LARGEST_MESSAGE", 4 << 20)
    await write(own_etcd, lease_put(1))
    cable = Cable(own_etcd)
    await cable.mend()
    async with opened(cable.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        cable.cut()
        await seen.until(lambda f: not f.connected)
        await write(own_etcd, *(poison(number) for number in (2, 3, 4)), lease_put(5))
        await cable.mend()
        await seen.until(lambda f: set(f.leases) == {name(1), name(5)} and f.connected)
        assert (seen.snapshots, set(seen.refused)) == (2, {name(2), name(3), name(4)})
    cable.cut()
