"""The files that TLS needs: read and checked at start, and read again when they have changed."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.errors import Misconfigured
from services.lease.stores.etcd.settings import EtcdSettings
from services.runtime.logs import get_logger

log = get_logger()

_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The contents of the files that TLS needs."""

    roots: bytes | None
    """None: grpc's own list."""
    certificate: bytes | None
    key: bytes | None


def read_tls_files(settings: EtcdSettings) -> TlsFiles:
    """Reads and checks them. Raises Misconfigured, naming the flag, when a file cannot be used."""
    roots = _read(settings.cafile, "cafile") if settings.cafile else _system_roots()
    context = ssl.create_default_context()
    if settings.cafile:
        try:
            context.load_verify_locations(cadata=(roots or b"").decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise Misconfigured(f"--etcd-cafile {settings.cafile} has no certificate in PEM form") from None
    if not settings.certfile:
        return TlsFiles(roots, None, None)
    certificate, key = _read(settings.certfile, "certfile"), _read(settings.keyfile, "keyfile")
    try:
        context.load_cert_chain(settings.certfile, settings.keyfile, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise Misconfigured(
            f"--etcd-certfile {settings.certfile} and --etcd-keyfile {settings.keyfile} are not a certificate and "
            f"its unencrypted key in PEM form: {getattr(error, 'reason', None) or error}"
        ) from None
    return TlsFiles(roots, certificate, key)


class Tls:
    """Their contents now. Construction raises Misconfigured, naming the flag, when a file cannot be used.

    A certificate that is renewed while we run comes into use with the next connection, without a restart.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._stamp = self._read_stamp()
        self.files = read_tls_files(settings)

    def changed_since(self, files: TlsFiles | None) -> bool:
        """Whether others are in use now than these. Files that cannot be used are logged once, and left alone."""
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self.files = read_tls_files(self._settings)
            except Misconfigured as error:
                log.warning("the new TLS files for etcd cannot be used, the old ones stay", error=str(error))
        return self.files != files

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        paths = (self._settings.cafile, self._settings.certfile, self._settings.keyfile)
        return tuple(_stamp(Path(path)) for path in paths if path)


def _read(path: str, flag: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Misconfigured(f"--etcd-{flag} {path} cannot be read: {error.strerror}") from None


def _system_roots() -> bytes | None:
    """What this system trusts. grpc would take a list of its own."""
    for path in (ssl.get_default_verify_paths().cafile, *_BUNDLES):
        if path and Path(path).is_file():
            return _read(path, "cafile")
    return None


def _no_password() -> str:
    """Asked for by an encrypted key; OpenSSL would read the terminal."""
    return ""


def _stamp(path: Path) -> tuple[int, int, int]:
    """What is another for another content."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
