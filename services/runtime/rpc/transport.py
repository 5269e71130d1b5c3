"""Channels and server credentials: TCP with TLS, or without TLS on loopback only; unix sockets have no TLS."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import grpc
import grpc.aio

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.tls.credentials import Credentials
from flannelette.services.runtime.tls.files import Material
from flannelette.services.runtime.tls.refusal import explain, speaks_tls

Options = Sequence[tuple[str, str | int]]

_HOST_AND_PORT: Final = re.compile(
    r"(\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^][:/\s]+)):(?P<port>\d{1,5})", re.ASCII
)
_NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)  # ignore proxies in the environment


@dataclass(frozen=True, slots=True)
class Transport:
    """The TLS setting of this process: makes channels, and says how a server may listen on an address."""

    credentials: Credentials | None = None
    """None: no TLS."""
    server_name: str = ""
    """The name that a server's certificate must have, if not the host of its address."""
    dangerously: bool = False
    """Allows TCP without TLS also beyond loopback."""

    @property
    def material(self) -> Material | None:
        """The certificate that a new channel presents; another object once the files were replaced."""
        return self.credentials.material if self.credentials else None

    def channel(
        self, address: str, options: Options = (), interceptors: Sequence[grpc.aio.ClientInterceptor] = ()
    ) -> grpc.aio.Channel:
        """A channel to `unix:PATH` or HOST:PORT. Raises Misconfigured: malformed, or TLS is required."""
        options = (*_NO_PROXY, *options, *self._name_option())
        credentials = self._credentials_for(address)
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
        return grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors)

    def blocking_channel(self, address: str) -> grpc.Channel:
        """The same for a program without an event loop."""
        options = (*_NO_PROXY, *self._name_option())
        credentials = self._credentials_for(address)
        if credentials is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, credentials, options=options)

    def server_credentials(self, address: str) -> grpc.ServerCredentials | None:
        """The credentials of a server on this address; None: no TLS. Raises Misconfigured: TLS is required."""
        if address.startswith("unix:"):
            return None
        host, _ = host_and_port(address)
        if self.credentials is not None:
            if not self.credentials.material.certificate.serves:
                raise Misconfigured(
                    f"the certificate {self.credentials.files.certificate} is for clients only: serve unix:PATH, or "
                    "give one for servers (`flannelette certs server`, or `certs node` with --address)"
                )
            return self.credentials.for_server()
        if not (self.dangerously or is_loopback(host)):
            raise Misconfigured(
                f"--listen {address} is not on loopback: give --tls-cert-file, --tls-key-file and --tls-ca-file, or "
                "use unix:PATH or 127.0.0.1:PORT"
            )
        return None

    def explain_failure(self, address: str, program: str, details: str) -> str:
        """A sentence that says why there is no connection to HOST:PORT, where `program` should listen.

        `details` is the message of gRPC. Takes up to 4 s: not for the event loop.
        """
        host, port = host_and_port(address)
        if self.credentials is not None:
            found = explain(host, port, self.credentials, self.server_name)
        else:
            found = "the server requires TLS: give --tls-cert-file, --tls-key-file and --tls-ca-file" * speaks_tls(
                host, port
            )
        if found:
            return f"no connection to {address}: {found}"
        return f"no answer at {address}: is {program} running there, and is the address right? ({details})"

    def _credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        if address.startswith("unix:"):
            return None
        host, _ = host_and_port(address)
        if self.credentials is not None:
            return self.credentials.for_channel()
        if not (self.dangerously or is_loopback(host)):
            raise Misconfigured(
                f"{address} is not on loopback: give --tls-cert-file, --tls-key-file and --tls-ca-file"
            )
        return None

    def _name_option(self) -> Options:
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


PLAIN: Final = Transport()
"""No TLS: unix sockets and loopback only."""


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; brackets around IPv6 are removed. Raises Misconfigured.

    Without brackets, gRPC would read an IPv6 address and port as an address alone.
    """
    matched = _HOST_AND_PORT.fullmatch(address)
    if matched is None or int(matched["port"]) > 65535:
        raise Misconfigured(f"{address!r} is not an address: use unix:PATH or HOST:PORT, with brackets around IPv6")
    return matched["ipv6"] or matched["host"], int(matched["port"])


def is_loopback(host: str) -> bool:
    """Whether only this host reaches the address. IPv4 inside IPv6 is no loopback, though Python 3.13 says so."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback and getattr(address, "ipv4_mapped", None) is None
