"""A lab's own certificate authority, and the certificates that it signs, in one directory.

The files are ca.crt and ca.key, and NAME-KIND.crt and NAME-KIND.key of everybody else. Time and lifetimes are
arguments; only the keys are random.

"""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flannelette.services.core.frozen import frozen

Key: TypeAlias = ec.EllipticCurvePrivateKey

_SKEW: Final = timedelta(minutes=5)
"""Valid from so long ago, for hosts whose clock is behind."""


class Unusable(Exception):
    """What is there cannot be used; the message says what to do."""


@frozen
class Authority:
    """A certificate authority: the certificate, and the key that signs."""

    certificate: x509.Certificate
    key: Key


@frozen
class CertificateRequest:
    """What a certificate shall say."""

    name: str
    """The common name, for people. Nothing is decided by it."""
    uris: Sequence[str] = ()
    """The names of its bearer to a server; without any it is for servers only."""
    addresses: Sequence[str] = ()
    """Host names and IP addresses that clients connect to; without any it is for clients only."""


@frozen
class Issued:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes
    not_after: datetime


def make_authority(name: str, now: datetime, days: float) -> Issued:
    """A new authority, which signs itself and may sign no other authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(name), _name(name), key, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _signed(builder, key, Authority(certificate=builder.sign(key, hashes.SHA256()), key=key))


def issue(authority: Authority, wanted: CertificateRequest, now: datetime, days: float) -> Issued:
    """A certificate for the bearer. It never outlives the authority. Raises Unusable: that has run out."""
    end = authority.certificate.not_valid_after_utc
    if now >= end:
        raise Unusable(f"the authority expired on {end:%Y-%m-%d}: make a new one (flannelette certs ca DIR --force)")
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] if wanted.uris else []
    purposes += [ExtendedKeyUsageOID.SERVER_AUTH] if wanted.addresses else []
    names = [*map(x509.UniformResourceIdentifier, wanted.uris), *map(_address, wanted.addresses)]
    builder = (
        _builder(_name(wanted.name), authority.certificate.subject, key, now, min(now + timedelta(days=days), end))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return _signed(builder, key, authority)


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """Reads an authority from PEM. Raises Unusable."""
    try:
        signer = Authority(x509.load_pem_x509_certificate(certificate), _load_key(key))
        signer.certificate.verify_directly_issued_by(signer.certificate)
    except (ValueError, TypeError, InvalidSignature):
        raise Unusable(
            "ca.crt and ca.key are damaged, or no authority that `flannelette certs ca` made: bring back the right "
            "ones, or make a new one with --force"
        ) from None
    if signer.certificate.public_key() != signer.key.public_key():
        raise Unusable("ca.key is not the key of ca.crt: bring the two together again, or make a new authority")
    return signer


def _load_key(pem: bytes) -> Key:
    key = load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("ca.key is no key on an elliptic curve")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(builder: x509.CertificateBuilder, key: Key, authority: Authority) -> Issued:
    certificate = builder.sign(authority.key, hashes.SHA256())
    return Issued(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        certificate.not_valid_after_utc.astimezone(UTC),
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])  # RFC 5280: at most 64


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


AUTHORITY: Final = "ca"


def certificate_path(directory: Path, stem: str) -> Path:
    """Returns the path of a certificate; `stem` is NAME-KIND."""
    return directory / f"{stem}.crt"


def key_path(directory: Path, stem: str) -> Path:
    """Returns the path of a certificate's private key; `stem` is NAME-KIND."""
    return directory / f"{stem}.key"


def require_free(directory: Path, stems: Iterable[str], *, force: bool) -> bool:
    """Whether no file will be overwritten. Raises Unusable if one would be and nobody allowed to."""
    taken = [
        p for stem in stems for p in (certificate_path(directory, stem), key_path(directory, stem)) if p.exists()
    ]
    if taken and not force:
        raise Unusable(f"{taken[0]} is there already: nothing was made; --force replaces it")
    return not taken


def authority_in(directory: Path) -> Authority:
    """The authority of the directory. Raises Unusable."""
    certificate, key = certificate_path(directory, AUTHORITY), key_path(directory, AUTHORITY)
    if not certificate.exists() and not key.exists():
        raise Unusable(f"there is no authority in {directory}: make one first: flannelette certs ca {directory}")
    try:
        return read_authority(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise Unusable(f"{error.filename} cannot be read: {error.strerror}") from None


def keep(directory: Path, issued: Mapping[str, Issued]) -> None:
    """Writes all of them, each file at once; keys are for the owner only, from the first byte. Raises Unusable."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for stem, pair in issued.items():
            _write(key_path(directory, stem), pair.key, 0o600)
            _write(certificate_path(directory, stem), pair.certificate, 0o644)
    except OSError as error:
        raise Unusable(f"{error.filename} cannot be written: {error.strerror}") from None


def _write(path: Path, content: bytes, mode: int) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # whatever the umask is
        file.write(content)
    new.replace(path)
