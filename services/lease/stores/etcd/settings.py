"""Where etcd is and how to be let in: settings, checked before anything is opened."""

import posixpath
import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from services.core.errors import Misconfigured

DEFAULT_ENDPOINTS: Final = ("http://127.0.0.1:4001", "http://127.0.0.1:2379")
DEFAULT_PREFIX: Final = "/coreos.com/network"
_PORT: Final = 2379
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?\.?", re.ASCII)


@dataclass(frozen=True, slots=True)
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
    """The user's password."""

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
    def targets(self) -> tuple["Target", ...]:
        """The endpoints, one target each, in their order."""
        secure = bool(self.cafile or self.certfile)
        return tuple(_target(text.strip(), secure) for text in self.endpoints if text.strip())


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint as gRPC names it. Each has its own: a certificate is checked against the name of its host."""

    name: str
    """`127.0.0.1:2379`, for people."""
    address: str
    """`ipv4:127.0.0.1:2379`, `ipv6:[::1]:2379` or `dns:///etcd.example:2379`."""
    secure: bool
    """TLS."""


def _cleaned(prefix: str) -> str:
    """As Go's path.Clean; the watch needs a directory of its own."""
    cleaned = posixpath.normpath(prefix) if prefix else "."
    if cleaned.startswith("//"):
        cleaned = cleaned[1:]  # POSIX keeps two leading slashes, Go does not
    if cleaned in (".", "/") or cleaned.startswith(".."):
        raise Misconfigured(f"--etcd-prefix {prefix!r} must name a directory: write for instance {DEFAULT_PREFIX}")
    return cleaned


def _target(text: str, secure: bool) -> Target:
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        host, port = url.hostname, url.port or _PORT
    except ValueError:
        host, port = None, 0
    if url.scheme not in ("http", "https") or not host or url.path.strip("/") or url.query:
        raise Misconfigured(f"etcd endpoint {text!r} is no URL of a server: write for instance http://10.0.0.1:2379")
    if ":" not in host and not _HOST.fullmatch(host):
        raise Misconfigured(f"etcd endpoint {text!r} has no host name in it: write for instance http://10.0.0.1:2379")
    secure = secure or url.scheme == "https"
    try:
        version = ip_address(host).version
    except ValueError:
        return Target(f"{host}:{port}", f"dns:///{host}:{port}", secure)
    name = f"[{host}]:{port}" if version == 6 else f"{host}:{port}"
    return Target(name, f"ipv{version}:{name}", secure)
