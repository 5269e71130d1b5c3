"""The reason why a TLS connection fails, found by another handshake with the standard library, which reports more."""

import socket
import ssl
from typing import Final

from flannelette.services.runtime.tls.certificate import Certificate
from flannelette.services.runtime.tls.credentials import Credentials

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
