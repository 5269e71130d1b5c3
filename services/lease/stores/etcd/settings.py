"""Where etcd is and how to be let in: settings and TLS files, checked before anything is opened."""

import posixpath
import re
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.os.files import why_unreadable
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

DEFAULT_ENDPOINTS: Final = ("http://127.0.0.1:4001", "http://127.0.0.1:2379")
DEFAULT_PREFIX: Final = "/coreos.com/network"
_PORT: Final = 2379
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?\.?", re.ASCII)


@frozen
class EtcdSettings:
    """flannel's `--etcd-*` flags. Construction raises Misconfigured, naming the flag and what to write."""

    endpoints: tuple[str, ...] = DEFAULT_ENDPOINTS
    """URLs of the members, `http://10.0.0.1:2379`; tried in turn. Without a scheme it is http."""
    prefix: str = DEFAULT_PREFIX
    """Where the keys are, cleaned as a path."""
    cafile: str = ""
    """PEM of the authorities that may have signed the servers' certificates; alone, it means TLS too."""
    certfile: str = ""
    """PEM of our certificate, with `keyfile`."""
    keyfile: str = ""
    """PEM of our key, with `certfile`."""
    username: str = ""
    """User to log in as; empty: nobody."""
    password: str = ""
    """Password of that user; empty: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", _cleaned(self.prefix))
        if bool(self.certfile) != bool(self.keyfile):
            given, missing = ("certfile", "keyfile") if self.certfile else ("keyfile", "certfile")
            raise Misconfigured(f"--etcd-{given} needs --etcd-{missing} too: give both or neither")
        if self.password and not self.username:
            raise Misconfigured("--etcd-password needs --etcd-username too")
        if not self.targets:
            raise Misconfigured("--etcd-endpoints is empty: write for instance http://127.0.0.1:2379")

    @property
    def targets(self) -> tuple["Endpoint", ...]:
        """The endpoints in their order."""
        secure = bool(self.cafile or self.certfile)
        return tuple(_target(text.strip(), secure) for text in self.endpoints if text.strip())


@frozen
class Endpoint:
    """One endpoint as gRPC names it. Each has its own: a certificate is checked against the name of its host."""

    name: str
    """Host and port for people: `127.0.0.1:2379`."""
    address: str
    """`ipv4:127.0.0.1:2379`, `ipv6:[::1]:2379` or `dns:///etcd.example:2379`."""
    secure: bool
    """Whether the connection has TLS."""


def _cleaned(prefix: str) -> str:
    """Cleans a prefix as Go's path.Clean does; it must name a directory, because the watch needs one of its own."""
    cleaned = posixpath.normpath(prefix) if prefix else "."
    if cleaned.startswith("//"):
        cleaned = cleaned[1:]  # POSIX keeps two leading slashes, Go does not
    if cleaned in (".", "/") or cleaned.startswith(".."):
        raise Misconfigured(f"--etcd-prefix {prefix!r} must name a directory: write for instance {DEFAULT_PREFIX}")
    return cleaned


def _target(text: str, secure: bool) -> Endpoint:
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        host, port = url.hostname, url.port or _PORT
    except ValueError:
        host, port = None, 0
    if url.scheme not in ("http", "https") or not host or url.path.strip("/") or url.query:
        raise Misconfigured(f"etcd endpoint {text!r} is not a server URL: write for instance http://10.0.0.1:2379")
    if ":" not in host and not _HOST.fullmatch(host):
        raise Misconfigured(f"etcd endpoint {text!r} has no host name in it: write for instance http://10.0.0.1:2379")
    secure = secure or url.scheme == "https"
    try:
        version = ip_address(host).version
    except ValueError:
        return Endpoint(f"{host}:{port}", f"dns:///{host}:{port}", secure)
    name = f"[{host}]:{port}" if version == 6 else f"{host}:{port}"
    return Endpoint(name, f"ipv{version}:{name}", secure)


_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


@frozen
class TlsContents:
    """The contents of the files that TLS needs."""

    roots: bytes | None
    """None: grpc's own list."""
    certificate: bytes | None
    key: bytes | None


def read_tls_files(settings: EtcdSettings) -> TlsContents:
    """Reads and checks them. Raises Misconfigured, naming the flag, when a file cannot be used."""
    roots = _read(settings.cafile, "cafile") if settings.cafile else _system_roots()
    context = ssl.create_default_context()
    if settings.cafile:
        try:
            context.load_verify_locations(cadata=(roots or b"").decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise Misconfigured(f"--etcd-cafile {settings.cafile} has no certificate in PEM form") from None
    if not settings.certfile:
        return TlsContents(roots, None, None)
    certificate, key = _read(settings.certfile, "certfile"), _read(settings.keyfile, "keyfile")
    try:
        context.load_cert_chain(settings.certfile, settings.keyfile, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise Misconfigured(
            f"--etcd-certfile {settings.certfile} and --etcd-keyfile {settings.keyfile} are not a certificate and "
            f"its unencrypted key in PEM form: {getattr(error, 'reason', None) or error}"
        ) from None
    return TlsContents(roots, certificate, key)


class Tls:
    """The contents of the TLS files. Construction raises Misconfigured, naming the flag, when a file cannot be used.

    A certificate that is renewed while we run comes into use with the next connection, without a restart.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._stamp = self._read_stamp()
        self.files = read_tls_files(settings)

    def changed_since(self, files: TlsContents | None) -> bool:
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
        raise Misconfigured(f"--etcd-{flag} {path} {why_unreadable(Path(path), error)}") from None


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
