"""The etcd store while etcd is away, frozen, compacted, replaced, locked or not etcd at all."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from services.core.errors import Misconfigured, Unavailable
from services.core.lease import LeaseRequest, Wish
from services.lease.store import Snapshot
from services.lease.stores.etcd import EtcdSettings, EtcdStore, Timing
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.records import Delete, Put, Transaction, Write
from tests.contract.follower import following
from tests.etcd import EtcdMaker, EtcdServer, free_port

QUICK = Timing(call=2.0, ping=0.5, pong=0.5, retry_first=0.05, retry_most=0.2)
CONFIG = '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'
PREFIX = "/coreos.com/network"
REQUEST = LeaseRequest("n1", "", (Wish(ip_address("10.99.0.1")),))


def lease_put(number: int, address: str = "") -> Put:
    value = f'{{"PublicIP":"{address or f"10.99.0.{number}"}","PublicIPv6":null}}'
    return Put(f"{PREFIX}/subnets/10.5.{number}.0-24".encode(), value.encode())


def lease_delete(number: int) -> Delete:
    return Delete(lease_put(number).key)


def name(number: int) -> str:
    return f"10.5.{number}.0-24"


async def write(server: EtcdServer, *writes: Write) -> None:
    """Each write in a revision of its own."""
    client = EtcdClient(EtcdSettings((server.endpoint,)), QUICK, "test")
    for each in writes:
        assert await client.transact(Transaction((), (each,)))
    await client.close()


@asynccontextmanager
async def opened(*endpoints: str, settings: EtcdSettings | None = None) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(settings or EtcdSettings(endpoints), timing=QUICK)
    yield store
    await store.close()


async def test_a_watch_goes_on_without_a_gap_when_etcd_is_killed_and_comes_back(own_etcd: EtcdServer) -> None:
    await write(own_etcd, Put(f"{PREFIX}/config".encode(), CONFIG.encode()), lease_put(1))
    async with opened(own_etcd.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        own_etcd.kill()
        await seen.until(lambda f: not f.connected)
        await seen.until(lambda f: "refuses connections: check --etcd-endpoints" in f.statuses[-1].error)
        with pytest.raises(Unavailable, match="refuses connections"):
            await store.acquire(REQUEST)
        assert seen.leases, "leases stay while etcd is away"
        own_etcd.start()
        await seen.until(lambda f: f.connected)
        await write(own_etcd, lease_put(2), lease_delete(1))
        await seen.until(lambda f: set(f.leases) == {name(2)})
        assert seen.snapshots == 1
        assert (await store.acquire(REQUEST)).node == "n1"


async def test_a_store_that_was_away_during_a_compaction_gets_a_snapshot(own_etcd: EtcdServer) -> None:
    """Only its connection is cut, so that the compaction is first."""
    await write(own_etcd, lease_put(1), lease_put(2))
    cable = Cable(own_etcd)
    await cable.mend()
    async with opened(f"http://127.0.0.1:{cable.port}") as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        cable.cut()
        await seen.until(lambda f: not f.connected)
        await write(own_etcd, lease_delete(1), lease_put(2, "10.99.0.77"), lease_put(3))
        own_etcd.etcdctl("compact", str(_revision(own_etcd)))
        await cable.mend()
        await seen.until(lambda f: f.connected)
        assert (seen.snapshots, set(seen.leases)) == (2, {name(2), name(3)}), "the table follows before it says so"
        assert str(seen.leases[name(2)].subnets[0].public_address) == "10.99.0.77"
        cable.cut()
        await write(own_etcd, lease_put(4))
        await cable.mend()
        await seen.until(lambda f: name(4) in f.leases)
        assert seen.snapshots == 2, "what is not compacted needs no snapshot"
    cable.cut()


async def test_an_etcd_with_other_data_is_listed_anew(own_etcd: EtcdServer) -> None:
    await write(own_etcd, *(lease_put(number) for number in range(1, 9)))
    async with opened(own_etcd.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected and len(f.leases) == 8)
        own_etcd.kill()
        shutil.rmtree(own_etcd.directory / "data")
        own_etcd.start()
        await write(own_etcd, lease_put(20))
        await seen.until(lambda f: set(f.leases) == {name(20)})


async def test_a_frozen_etcd_is_noticed(own_etcd: EtcdServer) -> None:
    async with opened(own_etcd.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        own_etcd.freeze()
        await seen.until(lambda f: not f.connected, seconds=5)
        assert "does not answer" in seen.statuses[-1].error
        with pytest.raises(Unavailable, match=r"does not answer|closed"):
            await store.renew("n1", name(1))
        own_etcd.thaw()
        await seen.until(lambda f: f.connected)


async def test_attempts_have_pauses_while_etcd_is_away() -> None:
    async with opened(f"http://127.0.0.1:{free_port()}") as store, following(store) as seen:
        processor = time.process_time()
        await asyncio.sleep(1)
        assert time.process_time() - processor < 0.5
        assert len(seen.statuses) < 5, "the same news once"
        assert not seen.snapshots


async def test_endpoints_that_do_not_answer_are_passed_over(own_etcd: EtcdServer) -> None:
    await write(own_etcd, Put(f"{PREFIX}/config".encode(), CONFIG.encode()))
    dead = f"http://127.0.0.1:{free_port()}"
    async with opened(dead, own_etcd.endpoint, dead) as store, following(store) as seen:
        assert isinstance(seen.events[0], Snapshot)
        assert (await store.acquire(REQUEST)).node == "n1"
        await seen.until(lambda f: f.nodes != {})
        own_etcd.kill()
        await seen.until(lambda f: not f.connected)
        own_etcd.start()
        await seen.until(lambda f: f.connected)


async def test_a_host_name_is_an_endpoint_too(own_etcd: EtcdServer) -> None:
    async with opened(f"http://localhost:{own_etcd.port}") as store, following(store) as seen:
        await seen.until(lambda f: f.connected)


async def test_a_server_without_grpc_is_told_apart() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port := free_port())
    async with opened(f"http://127.0.0.1:{port}") as store:
        with pytest.raises(Unavailable, match="etcd v3 is needed, the v2 API is not supported"):
            await store.acquire(REQUEST)
    server.close()


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
    await write(own_etcd, Put(f"{PREFIX}/config".encode(), CONFIG.encode()))
    _lock(own_etcd, f"{PREFIX}/")
    async with opened(settings=user(own_etcd)) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        lease = await store.acquire(REQUEST)
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
                await store.acquire(REQUEST)
            assert sentence in str(refusal.value)


async def test_a_login_is_not_needed_where_nobody_asks_for_one(own_etcd: EtcdServer) -> None:
    async with opened(settings=user(own_etcd)) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority `ca`, a `server` for 127.0.0.1 and a `client` that it signed, and a `stranger`."""
    authority = ("-CA", "ca.pem", "-CAkey", "ca.key")
    for common_name, signed_by in (("ca", ()), ("server", authority), ("client", authority), ("stranger", ())):
        subprocess.run(
            [
                *"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split(),
                *("-subj", f"/CN={common_name}", "-keyout", f"{common_name}.key", "-out", f"{common_name}.pem"),
                *(("-addext", "subjectAltName=IP:127.0.0.1") if common_name == "server" else ()),
                *signed_by,
            ],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    return tmp_path


async def test_tls_with_an_authority_of_ones_own(make_etcd: EtcdMaker, certificates: Path) -> None:
    files = {file: str(certificates / file) for file in ("ca.pem", "stranger.pem", "client.pem", "client.key")}
    server = make_etcd(
        f"--cert-file={certificates / 'server.pem'}",
        f"--key-file={certificates / 'server.key'}",
        f"--trusted-ca-file={files['ca.pem']}",
        "--client-cert-auth",
        scheme="https",
    )
    client = {"certfile": files["client.pem"], "keyfile": files["client.key"]}
    plain = f"http://127.0.0.1:{server.port}"  # a cafile means TLS all the same
    async with (
        opened(settings=EtcdSettings((plain,), cafile=files["ca.pem"], **client)) as store,
        following(store) as seen,
    ):
        await seen.until(lambda f: f.connected)
    for settings, sentence in (
        (EtcdSettings((server.endpoint,), cafile=files["stranger.pem"], **client), "cannot be verified"),
        (EtcdSettings((server.endpoint,), **client), "cannot be verified"),
        (EtcdSettings((server.endpoint,), cafile=files["ca.pem"]), "wants a certificate of ours"),
        (EtcdSettings((plain,)), "if it speaks TLS, write https://"),
    ):
        async with opened(settings=settings) as store:
            with pytest.raises(Unavailable, match=sentence):
                await store.acquire(REQUEST)


async def test_a_cafile_never_means_plain_text(own_etcd: EtcdServer, certificates: Path) -> None:
    settings = EtcdSettings((own_etcd.endpoint,), cafile=str(certificates / "ca.pem"))
    async with opened(settings=settings) as store:
        with pytest.raises(Unavailable, match="speaks no TLS"):
            await store.acquire(REQUEST)


def test_a_key_that_does_not_belong_to_the_certificate_is_named(certificates: Path) -> None:
    settings = EtcdSettings(certfile=str(certificates / "client.pem"), keyfile=str(certificates / "server.key"))
    with pytest.raises(Misconfigured, match="are not a certificate and its unencrypted key"):
        EtcdStore(EtcdSettings(("https://a",), certfile=settings.certfile, keyfile=settings.keyfile))


def _revision(server: EtcdServer) -> int:
    return int(server.etcdctl("endpoint", "status", "--write-out=fields").split('"Revision" :')[1].split()[0])


class Cable:
    """A TCP relay to a server, which a test can cut and mend."""

    def __init__(self, server: EtcdServer) -> None:
        self.port = free_port()
        self._server = server
        self._listener: asyncio.Server | None = None
        self._ends: list[asyncio.StreamWriter] = []

    async def mend(self) -> None:
        self._listener = await asyncio.start_server(self._relay, "127.0.0.1", self.port)

    def cut(self) -> None:
        assert self._listener is not None
        self._listener.close()
        while self._ends:
            self._ends.pop().close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        self._ends += [writer, there_writer]
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer), return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()
