"""Channels and server credentials: TCP with TLS, or without TLS on loopback only; unix sockets have no TLS."""

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

import grpc
import grpc.aio

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.tls import Certificate, Credentials, Material

Options = Sequence[tuple[str, str | int]]

_HOST_AND_PORT: Final = re.compile(
    r"(\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^][:/\s]+)):(?P<port>\d{1,5})", re.ASCII
)
_NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)  # ignore proxies in the environment


@frozen
class Transport:
    """The TLS setting of this process: makes channels, and says how a server may listen on an address."""

    credentials: Credentials | None = None
    """Certificate, key and authorities of this process; None: no TLS."""
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


_SECONDS: Final = 2.0
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"})


def explain(host: str, port: int, credentials: Credentials, server_name: str) -> str:
    """What is wrong with TLS at an address, and the remedy; empty: nothing. Takes up to 4 s, and blocks."""
    reason = credentials.invalid_reason()
    if reason:
        return reason
    ours, name = credentials.material, server_name or host
    if not ours.certificate.connects:
        return f"the certificate {credentials.files.certificate} is for servers only: give one that clients may use"
    try:
        with (
            socket.create_connection((host, port), _SECONDS) as connection,
            ours.context.wrap_socket(connection, server_hostname=name) as wrapped,
        ):
            accepted = bool(wrapped.recv(1))  # a gRPC server sends first, once it has accepted our certificate
    except ssl.SSLCertVerificationError as error:
        return _distrust(error.verify_message, name, str(credentials.files.authorities))
    except ssl.SSLError as error:
        if error.reason in _NOT_TLS:
            return (
                "the server does not speak TLS: start the service there with the --tls flags, or leave them out here"
            )
        if not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return f"TLS fails: {error.reason or error}"
        accepted = False
    except ConnectionResetError:
        accepted = False
    except OSError:
        return ""
    return "" if accepted else _refused(ours.certificate, credentials)


def speaks_tls(host: str, port: int) -> bool:
    """Whether a server that closed a connection without TLS accepts TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent
    try:
        with socket.create_connection((host, port), _SECONDS) as connection, context.wrap_socket(connection):
            return True
    except OSError:
        return False


def _distrust(message: str, name: str, authorities: str) -> str:
    if "mismatch" in message:
        return (
            f"the server's certificate is not for {name}: connect to a name or an address in the certificate, or "
            "give one as --tls-server-name"
        )
    if "expired" in message or "not yet valid" in message:
        return f"the server's certificate is not valid now ({message}): replace it, or correct the clock"
    return (
        f"no authority in {authorities} has signed the server's certificate: is that the right --tls-ca-file? "
        f"({message})"
    )


def _refused(ours: Certificate, credentials: Credentials) -> str:
    who = ", ".join(ours.uris) or "without a URI"
    return (
        f"the server refuses the certificate {credentials.files.certificate} ({who}, issued by {ours.issuer}): the "
        "--tls-ca-file there must have that authority"
    )


_LONGEST_CALL_SECONDS: Final = 60.0
"""Time that a replaced channel stays open, for calls that still run."""
_SHORTEST_POLL_SECONDS: Final = 0.01
_LONGEST_POLL_SECONDS: Final = 1.0
_EXPLANATION_SECONDS: Final = 30.0
"""Time that an explanation is reused for the same message of gRPC."""


@frozen
class _Explanation:
    """The cause found at the last check, which costs the server a handshake."""

    sentence: str = ""
    material: Material | None = None
    details: str = ""
    until: float = 0.0

    def holds(self, material: Material | None, details: str, now: float) -> bool:
        return self.material is material and self.details == details and now < self.until


class ServerChannel:
    """A channel to `address` for the life of the process. Raises Misconfigured for an address that is not allowed."""

    def __init__(self, address: str, program: str, transport: Transport, options: Options = ()) -> None:
        self.address = address
        self._path = address.removeprefix("unix:") if address.startswith("unix:") else ""
        self._program = program
        self._transport = transport
        self._options = options
        self._replaced: list[tuple[float, grpc.aio.Channel]] = []
        self._explained = _Explanation()
        self._open()

    def _open(self) -> None:
        self._presented = self._transport.material
        self.channel = self._transport.channel(self.address, self._options)

    async def renew(self) -> bool:
        """Replaces `channel` if the certificate has changed; returns whether. For a lost connection.

        Calls on the previous channel continue: closing it would cancel them.
        """
        if self._transport.material is self._presented:
            return False
        now = asyncio.get_running_loop().time()
        self._replaced.append((now, self.channel))
        self._open()
        while self._replaced[0][0] < now - _LONGEST_CALL_SECONDS:
            await self._replaced.pop(0)[1].close()
        return True

    @property
    def absent_reason(self) -> str:
        """A sentence that says that no process listens on the unix socket."""
        return f"no answer on {self.address}: is {self._program} running, and is its socket accessible?"

    @property
    def is_absent(self) -> bool:
        """Whether no process listens on the unix socket. Other faults appear in a call."""
        if not self._path:
            return False
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)
                probe.connect(self._path)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ECONNREFUSED)
        return False

    async def until_present(self) -> None:
        """Waits until a process may listen on the unix socket.

        The interval between checks is a tenth of the time waited, from 10 ms to 1 s: quick when both start together,
        cheap in a long outage.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        while self.is_absent:  # noqa: ASYNC110 - nothing reports that change
            await asyncio.sleep(min(max(_SHORTEST_POLL_SECONDS, (loop.time() - since) / 10), _LONGEST_POLL_SECONDS))

    async def why(self, error: grpc.aio.AioRpcError) -> str:
        """A sentence with the cause of the error and the remedy. Tries a handshake if there is no connection."""
        details = error.details() or error.code().name
        if error.code() is not grpc.StatusCode.UNAVAILABLE or "failed to connect" not in details:
            return f"{self.address}: {details}"
        if self._path:
            return self.absent_reason
        material, now = self._transport.material, asyncio.get_running_loop().time()
        if not self._explained.holds(material, details, now):
            sentence = await asyncio.to_thread(self._transport.explain_failure, self.address, self._program, details)
            self._explained = _Explanation(sentence, material, details, now + _EXPLANATION_SECONDS)
        return self._explained.sentence

    async def close(self) -> None:
        """Closes the channel and those it has replaced, which ends open calls."""
        for _, channel in self._replaced:
            await channel.close()
        await self.channel.close()
