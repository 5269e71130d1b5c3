"""The files of a certificate: what is read out of them, what is wrong with them, and when they were replaced."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.tls import TlsFiles, certificate_of, chosen_files, read
from tests.services.certificates import URIS, Certificates


def test_a_certificate_says_who_it_is_and_what_it_is_for(lab: Certificates) -> None:
    client, server = lab.client("h1"), lab.server()
    both = lab.make("both", "both", uris=("flannelette://relay/a", "https://b"), addresses=("a.example.org",))
    seen = {name: certificate_of(f.certificate, f.key) for name, f in (("c", client), ("s", server), ("b", both))}
    assert [(s.uris, s.connects, s.serves) for s in seen.values()] == [
        ((URIS["h1"],), True, False),
        ((), False, True),
        (("flannelette://relay/a", "https://b"), True, True),
    ]
    assert seen["c"].issuer == "commonName=authority lab"
    assert seen["c"].not_after == pytest.approx(time.time() + 10 * 86400, abs=60)


def test_a_certificate_whose_time_is_not_now_is_read_and_doubted(lab: Certificates) -> None:
    now = time.time()
    old = lab.client("h1", start_days=-20)
    doubt = read(old).certificate.invalid_reason(now)
    assert doubt.startswith("expired on 20")
    assert doubt.endswith("UTC: replace the file, no restart is needed")
    assert read(lab.client("h1", start_days=2)).certificate.invalid_reason(now).endswith("UTC: is the clock right?")
    assert read(lab.client("h1")).certificate.invalid_reason(now) == ""


def test_every_unusable_file_is_named_with_its_fault(lab: Certificates, tmp_path: Path) -> None:
    good, another = lab.server(), lab.server("another")
    damaged, encrypted = tmp_path / "damaged", tmp_path / "encrypted"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n")
    key = load_pem_private_key(good.key.read_bytes(), None)
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    for files, said in (
        (
            replace(good, key=another.key),
            f"the key in {another.key} does not belong to the certificate in ",
        ),
        (
            replace(good, certificate=tmp_path / "none"),
            f"--tls-cert-file {tmp_path}/none cannot be read: No such",
        ),
        (replace(good, key=tmp_path), f"--tls-key-file {tmp_path} cannot be read: Is a directory"),
        (replace(good, certificate=good.key, key=good.certificate), "server.key has no certificate in PEM"),
        (replace(good, key=good.certificate), "server.crt has no private key in PEM"),
        (replace(good, authorities=good.key), "--tls-ca-file"),
        (replace(good, authorities=damaged), "has a certificate that cannot be read"),
        (replace(good, certificate=damaged), "is one of them damaged"),
        (replace(good, key=encrypted), "or the key encrypted?"),
    ):
        with pytest.raises(Misconfigured) as caught:
            read(files)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("key", "usable"),
    [
        (ec.generate_private_key(ec.SECP256R1()), True),
        (ec.generate_private_key(ec.SECP384R1()), True),
        (rsa.generate_private_key(65537, 2048), True),
        (ec.generate_private_key(ec.SECP521R1()), False),
        (ed25519.Ed25519PrivateKey.generate(), False),
    ],
    ids=["P-256", "P-384", "RSA", "P-521", "Ed25519"],
)
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_a_kind_of_key_that_grpc_cannot_use_is_named(
    lab: Certificates, key: Any, usable: bool, form: PrivateFormat
) -> None:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        form = PrivateFormat.PKCS8  # it has no other
    files = lab.server()
    files.key.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    # It is no key of this certificate; what kind it is comes first.
    said = "does not belong to the certificate|are no key and certificate" if usable else "key, which gRPC cannot use"
    with pytest.raises(Misconfigured, match=said):
        read(files)


def test_authorities_may_have_comments_of_any_kind(lab: Certificates) -> None:
    files = lab.server()
    files.authorities.write_bytes("# Autorité\n".encode() + files.authorities.read_bytes())
    assert read(files).context.get_ca_certs()


def test_the_three_files_belong_together(tmp_path: Path) -> None:
    assert chosen_files("", "", "") is None
    assert chosen_files("a", "b", "c") == TlsFiles(Path("a"), Path("b"), Path("c"))
    with pytest.raises(Misconfigured, match=r"^--tls-key-file and --tls-ca-file are missing: TLS needs"):
        chosen_files("a", "", "")
    with pytest.raises(Misconfigured, match=r"^--tls-cert-file is missing"):
        chosen_files("", "b", "c")


def test_a_link_to_another_directory_is_a_replacement(lab: Certificates, tmp_path: Path) -> None:
    """As Kubernetes replaces the files of a secret."""
    made = lab.server()
    for generation in ("1", "2"):
        (tmp_path / generation).mkdir()
        for path in (made.certificate, made.key, made.authorities):
            (tmp_path / generation / path.name).write_bytes(path.read_bytes())
    current = tmp_path / "current"
    current.symlink_to("1")
    files = TlsFiles(*(current / path.name for path in (made.certificate, made.key, made.authorities)))
    before = files.stamp()
    assert files.stamp() == before
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").replace(current)
    assert files.stamp() != before
