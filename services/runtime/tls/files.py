"""The three TLS files of a process: certificate, key, and the authorities whose certificates it accepts."""

import binascii
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.word_list import word_list
from flannelette.services.runtime.os.unreadable import why_unreadable
from flannelette.services.runtime.tls.certificate import Certificate, certificate_of, load_pair

_NOT_IN_GRPC: Final = {bytes.fromhex("06032b6570"): "Ed25519", bytes.fromhex("06052b81040023"): "P-521"}
"""Key types that gRPC cannot use, by the object identifier in the key."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Time, inode and size of each file: differs once a file was replaced, also through a symbolic link."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    certificate: Path
    """The certificate of the process, followed by intermediate certificates, if any."""
    key: Path
    authorities: Path

    def stamp(self) -> Stamp:
        """The stamp at this moment; three calls of stat(2), 10 µs."""
        return tuple(map(_stamp, (self.certificate, self.key, self.authorities)))


@dataclass(frozen=True, slots=True)
class Material:
    """The checked content of the files."""

    chain: bytes
    key: bytes
    authorities: bytes
    certificate: Certificate
    context: ssl.SSLContext
    """A client's context with the same content, to find out why gRPC cannot connect."""


def chosen_files(certificate: str, key: str, authorities: str) -> TlsFiles | None:
    """The files of the three flags; None: no flag was given. Raises Misconfigured: a flag is missing."""
    given = {"--tls-cert-file": certificate, "--tls-key-file": key, "--tls-ca-file": authorities}
    missing = [flag for flag, path in given.items() if not path]
    if len(missing) == len(given):
        return None
    if missing:
        raise Misconfigured(
            f"{word_list(missing, 'and')} {'is' if len(missing) == 1 else 'are'} missing: TLS needs "
            f"{', '.join(given)} together (`flannelette certs` makes all three)"
        )
    return TlsFiles(Path(certificate), Path(key), Path(authorities))


def read(files: TlsFiles) -> Material:
    """Reads and checks the files. Raises Misconfigured, naming the file and the fault.

    An expired certificate is accepted here: it may be replaced while the process runs.
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
        how = "" if isinstance(error, PermissionError) else "; `flannelette certs` makes certificates"
        raise Misconfigured(f"{flag} {path} {why_unreadable(path, error)}{how}") from None
    if mark not in content:
        raise Misconfigured(f"{flag} {path} has no {what} in PEM: give the right file")
    return content


def _require_kind(key: bytes, path: Path) -> None:
    """Refuses a key that OpenSSL accepts, but with which handshakes of gRPC fail without an error message."""
    encoded = b"".join(line for line in key.splitlines() if not line.startswith(b"-----"))
    try:
        decoded = binascii.a2b_base64(encoded)
    except binascii.Error:
        return  # OpenSSL reports this better
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
