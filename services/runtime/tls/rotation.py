"""Follows the files of a certificate: one that was replaced is in force without a restart."""

import asyncio
from collections.abc import Callable
from typing import Final

from services.core.errors import Misconfigured
from services.runtime.logs import get_logger
from services.runtime.prometheus import Gauge
from services.runtime.tls.credentials import Credentials

log = get_logger()

_POLL_SECONDS: Final = 1.0

_EXPIRY = Gauge(
    "flannelette_tls_certificate_expiry_timestamp_seconds", "When the TLS certificate in force runs out", ["file"]
)
_REFUSED = Gauge(
    "flannelette_tls_files_refused", "1 while the TLS files cannot be used and those read before stay in force"
)


async def follow(
    credentials: Credentials, notice: Callable[[str], None], poll_seconds: float = _POLL_SECONDS
) -> None:
    """Reads replaced files, for ever; tells `notice` the doubt about what is in force after every look.

    Files are read once they look the same twice, so within two seconds: three files are not replaced in one instant.
    """
    seen = credentials.judged
    _show_expiry(credentials)
    while True:
        notice(credentials.doubt())
        await asyncio.sleep(poll_seconds)
        before, seen = seen, credentials.files.stamp()
        if seen == before and seen != credentials.judged:
            await _replace(credentials)


async def _replace(credentials: Credentials) -> None:
    try:
        await asyncio.to_thread(credentials.replace)
    except Misconfigured as error:
        _REFUSED.set(1)
        log.error("the new TLS files cannot be used; those read before stay in force", reason=str(error))
    else:
        _REFUSED.set(0)
        _show_expiry(credentials)
        log.info("new TLS files are in force", certificate=str(credentials.files.certificate))


def _show_expiry(credentials: Credentials) -> None:
    _EXPIRY.labels(str(credentials.files.certificate)).set(credentials.material.certificate.not_after)
