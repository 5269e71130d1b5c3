"""The TLS files in force, as gRPC credentials for servers and channels."""

import math
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.tls.certificate import certificate_of, date
from flannelette.services.runtime.tls.files import Material, Stamp, TlsFiles, read

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
