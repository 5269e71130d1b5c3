"""The etcd store and etcd's users: logged in, logged in again, and told what is missing."""

import pytest

from services.core.errors import Unavailable
from services.lease.stores.etcd import EtcdSettings
from tests.contract.follower import following
from tests.etcd import EtcdServer
from tests.etcd_examples import CONFIG_PUT, PREFIX, opened, wants, write


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


async def test_a_user_is_logged_in_and_again_when_its_token_is_gone(own_etcd: EtcdServer) -> None:
    await write(own_etcd, CONFIG_PUT)
    _lock(own_etcd, f"{PREFIX}/")
    async with opened(settings=user(own_etcd)) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        lease = await store.acquire(wants())
        await seen.until(lambda f: lease.name in f.leases)
        own_etcd.kill()  # tokens are in its memory only
        own_etcd.start()
        await seen.until(lambda f: len(f.statuses) > 1 and f.connected)
        assert (await store.renew("n1", lease.name)).name == lease.name
        await store.release("n1", lease.name)
        await seen.until(lambda f: not f.leases)


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
