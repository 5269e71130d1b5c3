"""`flannelette certs`, and the command line over TLS with what it has made."""

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.process import Ran, run
from tests.examples.leases import SMALL_JSON
from tests.ports import free_port
from tests.services.lease import ServiceProcess, stub_of


def modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in sorted(directory.iterdir())}


async def certs(directory: Path, *words: str) -> Ran:
    return await run(directory, "certs", *words)


async def made(directory: Path, *words: str) -> str:
    """What is printed about certificates that were made."""
    ran = await certs(directory, *words)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def options(lab: Path, stem: str) -> list[str]:
    return [f"--tls-cert-file={lab}/{stem}.crt", f"--tls-key-file={lab}/{stem}.key", f"--tls-ca-file={lab}/ca.crt"]


async def test_it_makes_what_a_cluster_needs_and_says_what_to_try(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    before = os.umask(0)
    try:
        assert f"flannelette certs server lease {lab} --address" in await made(tmp_path, "ca", str(lab))
        said = await made(
            tmp_path, "server", "lease", str(lab), "--address", "127.0.0.1", "--address", "lease.example"
        )
    finally:
        os.umask(before)
    assert re.search(r"lease-server.crt and .key  127.0.0.1 lease.example, until \d{4}-\d\d-\d\d\n", said)
    said = await made(tmp_path, "node", "h1", str(lab))
    assert "h1-masq.crt and .key  flannelette://node/h1/masq, until" in said
    assert f"--tls-key-file {lab}/h1-dataplane.key" in said
    said = await made(tmp_path, "admin", "ada", str(lab))
    assert f"grpcurl -cacert {lab}/ca.crt -cert {lab}/ada-admin.crt -key {lab}/ada-admin.key" in said
    assert lab.stat().st_mode & 0o777 == 0o700
    assert modes(lab) == {
        f"{stem}.{kind}": 0o600 if kind == "key" else 0o644
        for stem in ("ada-admin", "ca", "h1-dataplane", "h1-masq", "lease-server")
        for kind in ("crt", "key")
    }


async def test_nothing_is_overwritten_unless_it_is_asked_for(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    await made(tmp_path, "ca", str(lab))
    await made(tmp_path, "node", "h1", str(lab))
    (lab / "h1-dataplane.crt").unlink()
    (lab / "h1-dataplane.key").unlink()
    contents = {path: path.read_bytes() for path in lab.iterdir()}
    for words in (("ca",), ("node", "h1")):
        ran = await certs(tmp_path, *words, str(lab))
        assert ran.code == 1
        assert re.fullmatch(
            rf"flannelette: {lab}/\S+ is there already: nothing was made; --force replaces it\n", ran.err
        )
    assert {path: path.read_bytes() for path in lab.iterdir()} == contents
    said = await made(tmp_path, "node", "h1", str(lab), "--force")
    assert (lab / "h1-masq.crt").read_bytes() != contents[lab / "h1-masq.crt"]
    assert said.endswith("\n\nNext, copy them over the old files: services read new ones without a restart.\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("node", "h1"), 1, "there is no authority in {}: make one first: flannelette certs ca {}"),
        (("node", "h 1"), 2, "'h 1' is not a valid name"),
        (("node", "../h1"), 2, "'../h1' is not a valid name"),
        (("server", "a"), 2, "Missing option '--address'"),
        (
            ("server", "a", "--address", "a:7"),
            2,
            "'a:7' is neither a host name nor an IP address; leave the port out",
        ),
        (("server", "a", "--address", "10.0.0.256"), 2, "is neither a host name nor an IP address"),
        (("ca", "--days", "0"), 2, "Invalid value for '--days'"),
    ],
)
async def test_what_is_wrong_is_said_in_a_sentence(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    lab = tmp_path / "lab"
    ran = await certs(tmp_path, *words, str(lab))
    assert ran.code == code
    assert said.replace("{}", str(lab)) in ran.err
    assert not lab.exists()


async def test_an_authority_that_is_damaged_signs_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for lab in (one, two):
        await made(tmp_path, "ca", str(lab))
    shutil.copy(one / "ca.key", two / "ca.key")
    assert "ca.key is not the key of ca.crt" in (await certs(tmp_path, "admin", "a", str(two))).err
    (one / "ca.crt").write_text("nonsense")
    assert "are damaged, or no authority" in (await certs(tmp_path, "admin", "a", str(one))).err


@asynccontextmanager
async def service_with(lab: Path) -> AsyncIterator[str]:
    """The TLS address of a lease service."""
    config, address = lab / "net.json", f"127.0.0.1:{free_port()}"
    config.write_text(SMALL_JSON)
    listen = f"--listen=unix:{lab}/lease.sock,{address}"
    store = (f"--net-config-path={config}", "--store-file=memory")
    with ServiceProcess(lab, *store, listen, *options(lab, "lease-server")) as process:
        async with stub_of(process.address):
            yield address


async def test_the_command_line_uses_what_was_made(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    await made(tmp_path, "ca", str(lab))
    await made(tmp_path, "server", "lease", str(lab), "--address", "127.0.0.1")
    await made(tmp_path, "node", "h1", str(lab))
    await made(tmp_path, "admin", "ada", str(lab))
    async with service_with(lab) as address:
        admin = options(lab, "ada-admin")
        assert (await run(tmp_path, f"--lease={address}", *admin, "leases")).code == 0
        variables: dict[str, Any] = {
            f"FLANNELETTE_{option[2:].partition('=')[0].upper().replace('-', '_')}": option.partition("=")[2]
            for option in admin
        }
        assert (await run(tmp_path, "leases", prefix=(), FLANNELETTE_LEASE=address, **variables)).code == 0

        ran = await run(tmp_path, f"--lease={address}", "leases")
        assert (ran.code, ran.err) == (
            2,
            f"flannelette: no connection to {address}: the server requires TLS: give --tls-cert-file, --tls-key-file "
            "and --tls-ca-file\n",
        )
        ran = await run(tmp_path, f"--lease={address}", f"--tls-cert-file={lab}/ada-admin.crt", "leases")
        assert (ran.code, "--tls-key-file and --tls-ca-file are missing" in ran.err) == (2, True)
        await made(tmp_path, "ca", str(lab), "--force")
        ran = await run(tmp_path, f"--lease={address}", *admin, "leases")
        assert (ran.code, "has signed the server's certificate" in ran.err) == (2, True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_openssl_agrees_with_the_certificates(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    await made(tmp_path, "ca", str(lab))
    await made(tmp_path, "server", "lease", str(lab), "--address", "127.0.0.1", "--relay")
    await made(tmp_path, "node", "h1", str(lab), "--days", "9999")
    for stem, purposes in {
        "lease-server": {"sslserver", "sslclient"},
        "h1-dataplane": {"sslclient"},
        "h1-masq": {"sslclient"},
    }.items():
        assert {p for p in ("sslserver", "sslclient") if verifies(lab, stem, p)} == purposes


def verifies(lab: Path, stem: str, purpose: str) -> bool:
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", f"{lab}/ca.crt"]
    return subprocess.run([*command, f"{lab}/{stem}.crt"], check=False, capture_output=True).returncode == 0
