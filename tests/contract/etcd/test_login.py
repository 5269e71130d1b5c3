"""The etcd store and etcd's users: logged in, logged in again, and told what is missing."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from flannelette.services.core.errors import Unavailable
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from tests.etcd.keys import CONFIG_PUT, PREFIX, lease_put, name, opened, wants, write
from tests.etcd.server import EtcdMaker, EtcdServer
from tests.faults.cable import Cable
from tests.services.follower import following


def _lock(server: EtcdServer, granted: str) -> None:
    """User flannel/secret with the right to a prefix, and authentication on."""
    for command in (
        "user add root:root",
        "user grant-role root root",
        "role add flannel",
        f"role grant-permission flannel readwrite --prefix=true {granted}",
        "user add flannel:secret",
        "user grant-role flannel flannel",
        "auth enable",
    ):
        server.etcdctl(*command.split())


def user(server: EtcdServer, password: str = "secret") -> EtcdSettings:  # noqa: S107 - of an etcd that lives for a test
    return EtcdSettings((server.endpoint,), username="flannel", password=password)


def logins() -> float:
    return REGISTRY.get_sample_value("flannelette_etcd_requests_total", {"call": "authenticate", "result": "OK"}) or 0


async def test_a_user_is_logged_in_and_stays_so_when_etcd_restarts(own_etcd: EtcdServer) -> None:
    await write(own_etcd, CONFIG_PUT)
    _lock(own_etcd, f"{PREFIX}/")
    async with opened(settings=user(own_etcd)) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        lease = await store.acquire(wants())
        await seen.until(lambda f: lease.name in f.leases)
        own_etcd.kill()
        own_etcd.start()
        await seen.until(lambda f: len(f.statuses) > 1 and f.connected)
        assert (await store.renew("n1", lease.name)).name == lease.name
        await store.release("n1", lease.name)
        await seen.until(lambda f: not f.leases)


async def test_a_token_that_ran_out_is_replaced_and_the_watch_does_not_notice(make_etcd: EtcdMaker) -> None:
    server = make_etcd("--auth-token-ttl=1")
    await write(server, CONFIG_PUT)
    _lock(server, f"{PREFIX}/")
    async with opened(settings=user(server)) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        before = logins()
        await asyncio.sleep(2.5)  # etcd looks for old tokens once a second
        lease = await store.acquire(wants())
        assert logins() == before + 1
        await seen.until(lambda f: lease.name in f.leases)
        assert [status.connected for status in seen.statuses] == [True]


async def test_calls_that_find_their_token_refused_at_once_log_in_once(own_etcd: EtcdServer) -> None:
    await write(own_etcd, CONFIG_PUT)
    _lock(own_etcd, f"{PREFIX}/")
    async with opened(settings=user(own_etcd)) as store:
        await store.relist()
        before = logins()
        own_etcd.etcdctl("--user=root:root", "auth", "disable")
        own_etcd.etcdctl("auth", "enable")
        await asyncio.gather(*(store.relist() for _ in range(8)))
        assert logins() == before + 1


async def test_a_right_that_is_taken_away_is_said_and_given_back_it_is_used(own_etcd: EtcdServer) -> None:
    await write(own_etcd, CONFIG_PUT, lease_put(1))
    _lock(own_etcd, f"{PREFIX}/")
    cable = Cable(own_etcd)
    await cable.mend()
    settings = replace(user(own_etcd), endpoints=(cable.endpoint,))
    async with opened(settings=settings) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        root = ("--user=root:root", "role")
        own_etcd.etcdctl(*root, "revoke-permission", "flannel", f"{PREFIX}/", "--prefix=true")
        with pytest.raises(Unavailable, match="etcd denies user flannel the keys under"):
            await store.acquire(wants())
        cable.cut()
        await cable.mend()
        await seen.until(lambda f: "etcd denies user flannel" in f.statuses[-1].error)
        assert set(seen.leases) == {name(1)}
        own_etcd.etcdctl(*root, "grant-permission", "--prefix=true", "flannel", "readwrite", f"{PREFIX}/")
        await seen.until(lambda f: f.connected)
        assert (await store.acquire(wants())).node == "n1"
        assert seen.snapshots == 1
    cable.cut()


async def test_what_the_user_lacks_is_said(own_etcd: EtcdServer) -> None:
    _lock(own_etcd, f"{PREFIX}/subnets")
    grant = f"etcdctl role grant-permission ROLE readwrite --prefix {PREFIX}/"
    for settings, sentence in (
        (user(own_etcd), f"etcd denies user flannel the keys under {PREFIX}/: {grant}"),
        (user(own_etcd, "wrong"), "refuses the login: check --etcd-username and --etcd-password"),
        (EtcdSettings((own_etcd.endpoint,)), "wants a login: set --etcd-username and --etcd-password"),
    ):
        async with opened(settings=settings) as store, following(store) as seen:
            assert sentence in seen.statuses[0].error
            with pytest.raises(Unavailable) as refusal:
                await store.acquire(wants())
            assert sentence in str(refusal.value)


async def test_a_login_is_not_needed_where_nobody_asks_for_one(own_etcd: EtcdServer) -> None:
    async with opened(settings=user(own_etcd)) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
