"""The TLS files in force, as gRPC credentials for servers and channels."""

import time

import grpc

from services.runtime.tls.files import Material, Stamp, TlsFiles, read


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

    def replace(self) -> None:
        """Reads the files again. Raises Misconfigured; the previous content then stays in force."""
        self.last_read = self.files.stamp()
        self.material = read(self.files)

    def for_server(self) -> grpc.ServerCredentials:
        """For a server that accepts only clients with a certificate of the authorities; TLS 1.2 and newer."""
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
        """For a channel, which keeps these credentials until it is closed."""
        material = self.material
        return grpc.ssl_channel_credentials(material.authorities, material.key, material.chain)

    def invalid_reason(self) -> str:
        """A sentence that says why the certificate is not valid now; empty: it is."""
        reason = self.material.certificate.invalid_reason(time.time())
        return reason and f"the certificate {self.files.certificate} {reason}"


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.authorities)
