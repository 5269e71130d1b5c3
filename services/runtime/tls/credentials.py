"""Our certificate as it is in force: serves and connects with it."""

import time

import grpc

from services.runtime.tls.files import Material, Stamp, TlsFiles, read


class Credentials:
    """Guarantee: what is in force was checked. Raises Misconfigured when made.

    Open connections go on as they are; only new ones see a certificate that came later.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.judged: Stamp = files.stamp()
        """What the files looked like when they were last read, also if that failed."""
        self.material: Material = read(files)
        """In force; another object after every replacement."""

    def replace(self) -> None:
        """Reads the files again. Raises Misconfigured: what was in force before stays."""
        self.judged = self.files.stamp()
        self.material = read(self.files)

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


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.authorities)
