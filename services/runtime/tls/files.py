"""The three files: our certificate, its key, and the authorities whose certificates we accept."""

import binascii
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.errors import Misconfigured
from services.runtime.tls.certificate import Certificate, certificate_of, load_pair

_NOT_IN_GRPC: Final = {bytes.fromhex("06032b6570"): "Ed25519", bytes.fromhex("06052b81040023"): "P-521"}
"""By the object identifier in the key."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file time, inode and size: another one as soon as a file was replaced, also through a symbolic link."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where they are; all PEM."""

    certificate: Path
    """Ours, followed by the intermediate ones, if any."""
    key: Path
    authorities: Path

    def stamp(self) -> Stamp:
        """Costs three stat(2), 10 µs."""
        return tuple(map(_stamp, (self.certificate, self.key, self.authorities)))


@dataclass(frozen=True, slots=True)
class Material:
    """What was in the files, checked."""

    chain: bytes
    key: bytes
    authorities: bytes
    certificate: Certificate
    context: ssl.SSLContext
    """Of a client with all of it, to find out why gRPC cannot connect."""


def chosen_files(certificate: str, key: str, authorities: str) -> TlsFiles | None:
    """The files of the flags; None if none was given. Raises Misconfigured: they belong together."""
    given = {"--tls-cert-file": certificate, "--tls-key-file": key, "--tls-ca-file": authorities}
    missing = [flag for flag, path in given.items() if not path]
    if len(missing) == len(given):
        return None
    if missing:
        raise Misconfigured(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: TLS needs {', '.join(given)} "
            "together (`flannelette certs` makes all three)"
        )
    return TlsFiles(Path(certificate), Path(key), Path(authorities))


def read(files: TlsFiles) -> Material:
    """Reads and checks all three. Raises Misconfigured, naming the file and what is wrong with it.

    A certificate whose time is not now is no error: it may be replaced before anybody is the worse for it.
    """
    chain = _pem(files.certificate, "--tls-cert-file", b"-----BEGIN CERTIFICATE-----", "certificate")
    key = _pem(files.key, "--tls-key-file", b"PRIVATE KEY-----", "private key")
    authorities = _pem(files.authorities, "--tls-ca-file", b"-----BEGIN CERTIFICATE-----", "certificate")
    _require_kind(key, files.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    load_pair(context, files.certificate, files.key)
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
    except ssl.SSLError as error:
        raise Misconfigured(
            f"--tls-ca-file {files.authorities} has a certificate that cannot be read: {error.reason or error}"
        ) from None
    return Material(chain, key, authorities, certificate_of(files.certificate, files.key), context)


def _pem(path: Path, flag: str, mark: bytes, what: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Misconfigured(
            f"{flag} {path} cannot be read: {error.strerror}; `flannelette certs` makes certificates"
        ) from None
    if mark not in content:
        raise Misconfigured(f"{flag} {path} has no {what} in PEM: give the right file")
    return content


def _require_kind(key: bytes, path: Path) -> None:
    """OpenSSL would take these kinds too, and the handshakes of gRPC would fail without a word."""
    encoded = b"".join(line for line in key.splitlines() if not line.startswith(b"-----"))
    try:
        decoded = binascii.a2b_base64(encoded)
    except binascii.Error:
        return  # OpenSSL has better words for that
    for mark, kind in _NOT_IN_GRPC.items():
        if mark in decoded:
            raise Misconfigured(
                f"--tls-key-file {path} is an {kind} key, which gRPC cannot use: make one on P-256 or P-384, or RSA"
            )


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
