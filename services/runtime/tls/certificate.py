"""The fields of a certificate, read by a TLS handshake in memory between two ends of this process.

The standard library has no parser of certificates, but after a handshake it returns the peer's certificate. The
handshake also shows that key and certificate belong together, and whether they are valid for servers and clients.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.errors import Misconfigured

_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: the time is checked here, to report when the certificate expired."""
_VERSION: Final = 0xA0
_TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, by their tags."""
_MOST_ROUNDS: Final = 6
"""Rounds of messages after which a handshake is complete, or never will be."""


@dataclass(frozen=True, slots=True)
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
