"""The etcd store and TLS: an authority, a certificate of ours, and what is said when they do not fit."""

import subprocess
from pathlib import Path

import pytest

from services.core.errors import Misconfigured, Unavailable
from services.lease.stores.etcd import EtcdSettings, EtcdStore
from tests.contract.follower import following
from tests.etcd import EtcdMaker, EtcdServer
from tests.etcd_examples import opened, wants


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
                await store.acquire(wants())


async def test_defect_19_a_cafile_alone_never_means_plain_text(own_etcd: EtcdServer, certificates: Path) -> None:
    settings = EtcdSettings((own_etcd.endpoint,), cafile=str(certificates / "ca.pem"))
    async with opened(settings=settings) as store:
        with pytest.raises(Unavailable, match="speaks no TLS"):
            await store.acquire(wants())


def test_a_key_that_does_not_belong_to_the_certificate_is_named(certificates: Path) -> None:
    settings = EtcdSettings(certfile=str(certificates / "client.pem"), keyfile=str(certificates / "server.key"))
    with pytest.raises(Misconfigured, match="are not a certificate and its unencrypted key"):
        EtcdStore(EtcdSettings(("https://a",), certfile=settings.certfile, keyfile=settings.keyfile))
