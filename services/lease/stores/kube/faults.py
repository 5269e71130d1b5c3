"""What an API server and the way to it complain about, as our errors in sentences that say what to do."""

import json
import re
from typing import Final

from services.core.errors import Unavailable
from services.lease.stores.kube.records import Busy, Expired, Gone

UNAUTHORIZED: Final = 401
_SENTENCES: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "has a certificate that cannot be verified: check the certificate authority"),
    ("certificate required|bad certificate|unknown ca|alert", "does not accept our client certificate"),
    ("WRONG_VERSION_NUMBER|record layer failure", "speaks no TLS: write http://, or name its secure port"),
    ("Name or service not known|name resolution|getaddrinfo", "has a name that cannot be resolved"),
    ("Connect call failed|Connection refused|Errno 111", "refuses connections: check its address, and that it runs"),
    ("No route to host|Network is unreachable", "cannot be reached: check the network"),
    ("(?i)timeout", "does not answer in time"),
    ("Server disconnected|Connection lost|Connection reset|closed", "closed the connection"),
)
"""What the message matches, and what that means for a reader; the first one counts."""


def away(server: str, error: BaseException) -> Unavailable:
    """The server cannot be reached, or does not answer, and why."""
    details = f"{type(error).__name__}: {error}"
    sentence = next((text for pattern, text in _SENTENCES if re.search(pattern, details)), None)
    where = f"the Kubernetes API at {server}"
    return Unavailable(f"{where} {sentence}" if sentence else f"{where} cannot be used: {details}")


def broken(server: str, error: ValueError) -> Unavailable:
    """It answers nonsense."""
    return Unavailable(f"the Kubernetes API at {server} sent what cannot be read ({error}): is it an API server?")


def refusal(server: str, what: str, status: int, body: bytes | object, retry_after: str = "") -> Exception:
    """The error for an answer that is no success. `what` is what we wanted, `watch nodes`."""
    message = _message(body)
    if status == 410:
        return Expired(message)
    if status == 404:
        return Gone(message)
    if status == UNAUTHORIZED:
        return Unavailable(f"the Kubernetes API at {server} does not know us: check the token or certificate")
    if status == 403:
        return Unavailable(
            f"the Kubernetes API at {server} does not let us {what}: give our role get, list and watch of nodes and "
            f"patch of nodes/status ({message})"
        )
    text = f"the Kubernetes API at {server} cannot {what} now: {status} {message}".rstrip()
    if status == 429 or retry_after:
        return Busy(text, _seconds(retry_after))
    return Unavailable(text)


def _seconds(retry_after: str) -> float:
    """Kubernetes always sends whole seconds; more than a minute is no answer to rely on."""
    return min(float(retry_after), 60.0) if re.fullmatch(r"[0-9]{1,9}", retry_after, re.ASCII) else 1.0


def _message(body: bytes | object) -> str:
    """What a Status object says; or the start of whatever came instead."""
    if isinstance(body, bytes):
        try:
            return _message(json.loads(body))
        except ValueError:
            return " ".join(body.decode(errors="replace").split())[:120]
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or "")[:300]
