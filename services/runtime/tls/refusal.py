"""Why a TLS connection cannot be made, in words: tries it once more with the standard library, which tells more."""

import socket
import ssl
from typing import Final

from services.runtime.tls.credentials import Credentials

_SECONDS: Final = 2.0
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"})


def explain(host: str, port: int, credentials: Credentials, server_name: str) -> str:
    """What is wrong, and what to do; empty: nothing that can be seen. Takes up to 4 s; not for the event loop."""
    doubt = credentials.doubt()
    if doubt:
        return doubt
    ours, address = credentials.material, f"{host}:{port}"
    if not ours.certificate.connects:
        return f"the certificate {credentials.files.certificate} is for servers only: give one that clients may use"
    try:
        with (
            socket.create_connection((host, port), _SECONDS) as connection,
            ours.context.wrap_socket(connection, server_hostname=server_name or host) as wrapped,
        ):
            accepted = bool(wrapped.recv(1))  # a gRPC server speaks first, once it has accepted us
    except ssl.SSLCertVerificationError as error:
        return _distrust(error, address, server_name or host, str(credentials.files.authorities))
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError):
        accepted = False
    except ssl.SSLError as error:
        if error.reason in _NOT_TLS:
            return (
                f"{address} does not speak TLS: start the service there with the --tls flags, or leave them out here"
            )
        return f"no TLS connection to {address}: {error.reason or error}"
    except TimeoutError:
        return f"{address} does not answer: is the address right, and does a firewall let us pass?"
    except OSError as error:
        return f"nobody answers on {address} ({error.strerror or error}): is the service running there?"
    if accepted:
        return ""
    who = ", ".join(ours.certificate.uris) or "no URI"
    return (
        f"{address} refuses the certificate {credentials.files.certificate} ({who}), which was issued by "
        f"{ours.certificate.issuer}: the --tls-ca-file there must have that authority"
    )


def speaks_tls(host: str, port: int) -> bool:
    """Whether a server that hung up on plain text speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent; the question is only who listens
    try:
        with socket.create_connection((host, port), _SECONDS) as connection, context.wrap_socket(connection):
            return True
    except OSError:
        return False


def _distrust(error: ssl.SSLCertVerificationError, address: str, name: str, authorities: str) -> str:
    message = error.verify_message
    if "mismatch" in message:
        return (
            f"the certificate of {address} is not for {name}: connect to a name or address that it has, or give "
            "the name that it has as --tls-server-name"
        )
    if "expired" in message or "not yet valid" in message:
        return f"the certificate of {address} is not valid now ({message}): it needs a new one, or a clock is wrong"
    return (
        f"the certificate of {address} is signed by nobody in {authorities}: is that the right --tls-ca-file? "
        f"({message})"
    )
