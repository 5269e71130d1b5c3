"""Our certificate as it is in force: serves and connects with it, and follows its files."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import grpc
import structlog
from prometheus_client import Gauge

from services.core.errors import Misconfigured
from services.runtime.tls.files import Material, TlsFiles, read

log = structlog.get_logger()

_POLL_SECONDS: Final = 1.0

_EXPIRY = Gauge(
    "flannelette_tls_certificate_expiry_timestamp_seconds", "When the TLS certificate in force runs out, Unix time"
)
_REFUSED = Gauge(
    "flannelette_tls_files_refused", "1 while the TLS files cannot be used and those read before stay in force"
)


class Credentials:
    """Guarantees: replaced files are in force within two polls; files that cannot be used never are.

    Open connections go on as they are; only new ones see another certificate. Raises Misconfigured when made.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._judged = files.stamp()
        self.material = read(files)
        """In force; another object after every replacement."""
        _EXPIRY.set(self.material.certificate.not_after)

    def for_server(self) -> grpc.ServerCredentials:
        """Of a server that accepts nobody without a certificate of the authorities; TLS 1.2 and newer."""
        served = self.material

        def replaced() -> grpc.ServerCertificateConfiguration | None:
            """Called by gRPC before every handshake, in a thread of its own."""
            nonlocal served
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
        """Of a client; a channel keeps them for life."""
        material = self.material
        return grpc.ssl_channel_credentials(material.authorities, material.key, material.chain)

    def doubt(self) -> str:
        """Why nobody accepts our certificate now, in a sentence; empty: its time is now."""
        doubt = self.material.certificate.doubt(time.time())
        return doubt and f"the certificate {self.files.certificate} {doubt}"

    async def follow(self, notice: Callable[[str], None], poll_seconds: float = _POLL_SECONDS) -> None:
        """Reads replaced files, for ever; tells `notice` the doubt about what is in force after every look.

        Files are read once they look the same twice: three files are not replaced in one instant.
        """
        seen = self._judged
        while True:
            notice(self.doubt())
            await asyncio.sleep(poll_seconds)
            before, seen = seen, self.files.stamp()
            if seen == before and seen != self._judged:
                self._judged = seen
                await self._replace()

    async def _replace(self) -> None:
        try:
            self.material = await asyncio.to_thread(read, self.files)
        except Misconfigured as error:
            _REFUSED.set(1)
            log.error("the new TLS files cannot be used; those read before stay in force", reason=str(error))
        else:
            _REFUSED.set(0)
            _EXPIRY.set(self.material.certificate.not_after)
            log.info("new TLS files are in force", certificate=str(self.files.certificate))


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.authorities)
