"""The etcd store and TLS: an authority, a certificate of ours, and what is said when they do not fit."""

import subprocess
from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from tests.etcd.keys import opened, wants
from tests.etcd.server import EtcdMaker, EtcdServer
from tests.services.follower import following


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority `ca`, a `server` for 127.0.0.1, a `namesake` for another name, a `client`, and a `stranger`."""
    make(tmp_path, "ca")
    make(tmp_path, "stranger")
    make(tmp_path, "server", *SIGNED, "-addext", "subjectAltName=IP:127.0.0.1")
    make(tmp_path, "namesake", *SIGNED, "-addext", "subjectAltName=DNS:etcd.example")
    make(tmp_path, "client", *SIGNED)
    return tmp_path


SIGNED = ("-CA", "ca.pem", "-CAkey", "ca.key")


def make(directory: Path, name: str, *arguments: str) -> None:
    """A certificate NAME.pem and its key."""
    subprocess.run(
        [
            *"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split(),
            *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", *arguments),
        ],
        cwd=directory,
        check=True,
        capture_output=True,
    )


def secured(make_etcd: EtcdMaker, certificates: Path, *arguments: str, name: str = "server") -> EtcdServer:
    """An etcd with the certificate of that name."""
    pair = (f"--cert-file={certificates / name}.pem", f"--key-file={certificates / name}.key")
    return make_etcd(*pair, *arguments, scheme="https")


def settings(certificates: Path, *endpoints: str, ca: str = "ca", client: str = "") -> EtcdSettings:
    """What an operator would set."""
    pair = {"certfile": f"{certificates / client}.pem", "keyfile": f"{certificates / client}.key"} if client else {}
    return EtcdSettings(endpoints, cafile=f"{certificates / ca}.pem" if ca else "", **pair)


async def test_a_cafile_alone_means_tls_with_that_authority(make_etcd: EtcdMaker, certificates: Path) -> None:
    """flannel ignores it: it takes the system's authorities, or plain text for http://.

    A regression test of defect 19 of flannel v0.28.
    """
    server = secured(make_etcd, certificates)
    plain = f"http://127.0.0.1:{server.port}"
    for endpoint in (server.endpoint, plain, f"127.0.0.1:{server.port}"):
        async with opened(settings=settings(certificates, endpoint)) as store, following(store) as seen:
            await seen.until(lambda f: f.connected)
    for wrong, sentence in (
        (settings(certificates, server.endpoint, ca="stranger"), "has a certificate that cannot be verified: check"),
        (settings(certificates, server.endpoint, ca=""), "has a certificate that cannot be verified: check"),
        (settings(certificates, plain, ca=""), "hangs up at once: if it speaks TLS, write https://"),
    ):
        await is_refused(wrong, sentence)


async def test_a_cafile_alone_never_means_plain_text(own_etcd: EtcdServer, certificates: Path) -> None:
    """A regression test of defect 19 of flannel v0.28."""
    await is_refused(settings(certificates, own_etcd.endpoint), "speaks no TLS: write http://")


async def test_a_certificate_for_another_name_is_refused(make_etcd: EtcdMaker, certificates: Path) -> None:
    server = secured(make_etcd, certificates, name="namesake")
    await is_refused(settings(certificates, server.endpoint), "certificate for another name: check --etcd-endpoints")


async def test_a_server_that_wants_a_certificate_of_ours_gets_it(make_etcd: EtcdMaker, certificates: Path) -> None:
    server = secured(make_etcd, certificates, *client_authentication(certificates))
    allowed = settings(certificates, server.endpoint, client="client")
    async with opened(settings=allowed) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
    for wrong in ("", "stranger"):
        await is_refused(settings(certificates, server.endpoint, client=wrong), "wants a certificate of ours, valid")


async def test_a_certificate_that_is_renewed_comes_into_use_without_a_restart(
    make_etcd: EtcdMaker, certificates: Path
) -> None:
    server = secured(make_etcd, certificates, *client_authentication(certificates))
    make(certificates, "ours")
    async with (
        opened(settings=settings(certificates, server.endpoint, client="ours")) as store,
        following(store) as seen,
    ):
        await seen.until(lambda f: "wants a certificate of ours" in f.statuses[-1].error)
        make(certificates, "ours", *SIGNED)
        await seen.until(lambda f: f.connected)


def client_authentication(certificates: Path) -> tuple[str, str]:
    return f"--trusted-ca-file={certificates / 'ca.pem'}", "--client-cert-auth"


async def is_refused(wrong: EtcdSettings, sentence: str) -> None:
    async with opened(settings=wrong) as store:
        with pytest.raises(Unavailable, match=sentence):
            await store.acquire(wants())


def test_a_key_that_does_not_belong_to_the_certificate_is_named(certificates: Path) -> None:
    settings = EtcdSettings(certfile=str(certificates / "client.pem"), keyfile=str(certificates / "server.key"))
    with pytest.raises(Misconfigured, match="are not a certificate and its unencrypted key"):
        EtcdStore(EtcdSettings(("https://a",), certfile=settings.certfile, keyfile=settings.keyfile))
