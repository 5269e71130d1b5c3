"""The TLS files in force: certificate, key and authorities, as gRPC credentials for servers and channels.

The fields of a certificate are read by a TLS handshake in memory between two ends of this process. The standard
library has no parser of certificates, but after a handshake it returns the peer's certificate. The handshake also
shows that key and certificate belong together, and whether they are valid for servers and clients.
"""

import binascii
import math
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.text import word_list
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.os.files import why_unreadable

_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: the time is checked here, to report when the certificate expired."""
_VERSION: Final = 0xA0
_TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, by their tags."""
_MOST_ROUNDS: Final = 6
"""Rounds of messages after which a handshake is complete, or never will be."""


@frozen
class Certificate:
    """The certificate of this process."""

    uris: tuple[str, ...]
    """The identities of the process: see services/core/access.py."""
    issuer: str
    not_before: float
    """Unix time, also below."""
    not_after: float
    serves: bool
    """Whether the certificate is valid for a server."""
    connects: bool
    """Whether the certificate is valid for a client."""

    def invalid_reason(self, now: float) -> str:
        """Why the certificate is not valid at this time, as a predicate ("expired on ..."); empty: it is valid."""
        if now < self.not_before:
            return f"is not valid before {date(self.not_before)}: is the clock right?"
        if now > self.not_after:
            return f"expired on {date(self.not_after)}: replace the file, no restart is needed"
        return ""


def certificate_of(chain: Path, key: Path) -> Certificate:
    """The first certificate of the chain. Raises Misconfigured: key and certificate do not belong together."""
    served, connected = _shown_by_server(chain, key), _shown_by_client(chain, key)
    shown = served if isinstance(served, dict) else connected
    if not isinstance(shown, dict):
        raise Misconfigured(f"the certificate in {chain} cannot be used: {shown}")
    return Certificate(
        uris=tuple(value for kind, value in shown.get("subjectAltName", ()) if kind == "URI"),
        issuer=", ".join(f"{name}={value}" for part in shown["issuer"] for name, value in part),
        not_before=ssl.cert_time_to_seconds(shown["notBefore"]),
        not_after=ssl.cert_time_to_seconds(shown["notAfter"]),
        serves=isinstance(served, dict),
        connects=isinstance(connected, dict),
    )


def not_after(pem: bytes) -> float:
    """When a certificate runs out, Unix time. Raises ValueError: it is no certificate.

    Reads the few bytes that this needs (RFC 5280, section 4.1): a handshake would take too long for each call.
    """
    try:
        certificate, _ = _element(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))
        rest, _ = _element(certificate)
        for tag in (_VERSION, None, None, None):  # the version, if it says one; serial number, algorithm, issuer
            if tag is None or rest[0] == tag:
                _, rest = _element(rest)
        validity, _ = _element(rest)
        _, end = _element(validity)
        text, _ = _element(end)
        return datetime.strptime(text.decode("ascii"), _TIMES[end[0]]).replace(tzinfo=UTC).timestamp()
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"this is no certificate: {error!r}") from None


def _element(der: bytes) -> tuple[bytes, bytes]:
    """The content of the first element in DER, and what comes after it. Raises IndexError."""
    size, begin = der[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[2:begin])
    return der[begin : begin + size], der[begin + size :]


def load_pair(context: ssl.SSLContext, chain: Path, key: Path) -> None:
    """Loads certificate and key into a context. Raises Misconfigured."""
    try:
        context.load_cert_chain(chain, key, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"the key in {key} does not belong to the certificate in {chain}: give the pair"
        else:
            reason = (
                f"{key} and {chain} are no key and certificate that can be used: is one of them damaged, or the key "
                f"encrypted? ({error.reason or error})"
            )
        raise Misconfigured(reason) from None


def _shown_by_server(chain: Path, key: Path) -> Any:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    return _shown(server, client, chain, key, verifies=client)


def _shown_by_client(chain: Path, key: Path) -> Any:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    server.verify_mode = ssl.CERT_REQUIRED
    load_pair(client, chain, key)
    return _shown(server, client, chain, key, verifies=server)


def _shown(
    server: ssl.SSLContext, client: ssl.SSLContext, chain: Path, key: Path, *, verifies: ssl.SSLContext
) -> dict[str, Any] | str:
    """The certificate that the peer of `verifies` presents, or why it is refused; only this one is trusted."""
    load_pair(server, chain, key)
    verifies.load_verify_locations(chain)
    verifies.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = {
        server: server.wrap_bio(to_server, to_client, server_side=True),
        client: client.wrap_bio(to_client, to_server),
    }
    undone = dict(ends)
    try:
        for _ in range(_MOST_ROUNDS):
            for context, end in tuple(undone.items()):
                try:
                    end.do_handshake()
                    del undone[context]
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return error.reason or str(error)
    return ends[verifies].getpeercert() or "no certificate was presented"


def date(time: float) -> str:
    """The time for people."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


_NOT_IN_GRPC: Final = {bytes.fromhex("06032b6570"): "Ed25519", bytes.fromhex("06052b81040023"): "P-521"}
"""Key types that gRPC cannot use, by the object identifier in the key."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Time, inode and size of each file: differs once a file was replaced, also through a symbolic link."""


@frozen
class TlsFiles:
    """Paths of PEM files."""

    certificate: Path
    """The certificate of the process, followed by intermediate certificates, if any."""
    key: Path
    authorities: Path

    def stamp(self) -> Stamp:
        """The stamp at this moment; three calls of stat(2), 10 µs."""
        return tuple(map(_stamp, (self.certificate, self.key, self.authorities)))


@frozen
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


_SOON_SECONDS: Final = 14 * 86_400.0
"""Two weeks: time for a person. A certificate that lives shorter is replaced by a program, in its last third."""


class Credentials:
    """Guarantee: files in force have been checked. Construction raises Misconfigured.

    A replaced certificate is used for new connections only.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.last_read: Stamp = files.stamp()
        """The stamp of the files at the last attempt to read them, successful or not."""
        self.material: Material = read(files)
        """The content in force; each replacement is a new object."""
        self.on_handshake: Callable[[], None] = lambda: None
        """Called before every handshake of a server, in a thread of gRPC's."""

        self.refused = ""
        """Why the files on disk cannot be used, a sentence without its period; empty: they are in force."""

    def replace(self) -> None:
        """Reads the files again. Raises Misconfigured; the previous content then stays in force."""
        self.last_read = self.files.stamp()
        try:
            self.material = read(self.files)
        except Misconfigured as error:
            self.refused = str(error)
            raise
        self.refused = ""

    def for_server(self) -> grpc.ServerCredentials:
        """Makes credentials for a server that accepts only clients with a certificate of the authorities; TLS 1.2 and
        newer.
        """
        served = self.material

        def replaced() -> grpc.ServerCertificateConfiguration | None:
            """Called by gRPC before every handshake, in a thread of its own."""
            nonlocal served
            self.on_handshake()
            if self.material is served:
                return None
            served = self.material
            return _configuration(served)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(served),
            replaced,  # type: ignore[arg-type]  # None is documented: the same as before
            require_client_authentication=True,
        )

    def for_channel(self) -> grpc.ChannelCredentials:
        """Makes credentials for a channel, which keeps them until it is closed."""
        material = self.material
        return grpc.ssl_channel_credentials(material.authorities, material.key, material.chain)

    def invalid_reason(self) -> str:
        """A sentence that says why nobody gets a connection with these files now; empty: they are valid."""
        now = time.time()
        if reason := self.material.certificate.invalid_reason(now):
            return f"the certificate {self.files.certificate} {reason}"
        if (over := self.authority_not_after) < now:
            file = self.files.authorities
            return f"the last authority in {file} expired on {date(over)}: replace the file, no restart is needed"
        return ""

    @property
    def authority_not_after(self) -> float:
        """When the last of the authorities runs out; an old one beside its successor may run out before."""
        return max((end for _, end in self.authorities), default=math.inf)

    @property
    def authorities(self) -> list[tuple[float, float]]:
        """Times from which and until which each of the authorities is valid."""
        return [
            (ssl.cert_time_to_seconds(str(each["notBefore"])), ssl.cert_time_to_seconds(str(each["notAfter"])))
            for each in self.material.context.get_ca_certs()
        ]


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.authorities)


def expiry_findings(credentials: Credentials, now: float) -> Iterator[Condition]:
    """What of these files runs out soon; what has run out already is a reason of the health."""
    files, material = credentials.files, credentials.material
    own = material.certificate
    yield from _expiring(files.certificate, own.not_before, own.not_after, now)
    if lives := credentials.authorities:
        not_before, not_after = max(lives, key=lambda life: life[1])
        yield from _expiring(files.authorities, not_before, not_after, now)
    if credentials.refused:
        evidence = f"in force: {files.certificate}, valid until {date(own.not_after)}"
        yield found("service.certificate-refused", reason=credentials.refused, evidence=evidence)


def pair_findings(certificate: Path, key: Path, now: float) -> Iterator[Condition]:
    """The same for a pair of files that another client of this process uses and reports the faults of."""
    with suppress(Misconfigured, OSError):
        own = certificate_of(certificate, key)
        yield from _expiring(certificate, own.not_before, own.not_after, now)


def _expiring(file: Path, not_before: float, not_after: float, now: float) -> Iterator[Condition]:
    """The finding about a certificate of this file, if it runs out soon, or has run out."""
    if not_after - now > min(_SOON_SECONDS, (not_after - not_before) / 3):
        return
    yield found(
        "service.certificate-expiry",
        file=file,
        runs="ran" if not_after < now else "runs",
        date=date(not_after),
        evidence=f"valid from {date(not_before)} to {date(not_after)}",
    )
