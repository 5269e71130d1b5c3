"""Certificates for tests, by the code behind `flannelette certs`, with any names, times and authorities."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flannelette.services.core.access import Principal, Role
from flannelette.services.ctl.certificates import (
    AUTHORITY,
    CertificateRequest,
    certificate_path,
    issue,
    keep,
    key_path,
    make_authority,
    read_authority,
)
from flannelette.services.runtime.rpc.transport import Transport
from flannelette.services.runtime.tls import Credentials, TlsFiles

URIS = {
    "h1": Principal(Role.DATAPLANE, "h1").uri,
    "h2": Principal(Role.DATAPLANE, "h2").uri,
    "h1-masq": Principal(Role.MASQ, "h1").uri,
    "relay": Principal(Role.RELAY, "rack7").uri,
    "cluster": Principal(Role.CLUSTER, "west").uri,
    "admin": Principal(Role.ADMIN, "ada").uri,
    "stranger": "spiffe://example.org/somebody",
}
"""Who the certificate of each name is."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Certificates:
    """An authority in a directory, and what it has signed."""

    def __init__(self, directory: Path, *, start_days: float = 0) -> None:
        self.directory = directory
        start = datetime.now(UTC) + timedelta(days=start_days)
        made = make_authority(f"authority {directory.name}", start, days=30)
        self._authority = read_authority(made.certificate, made.key)
        keep(directory, {AUTHORITY: made})

    def make(
        self,
        stem: str,
        name: str,
        *,
        uris: tuple[str, ...] = (),
        addresses: tuple[str, ...] = (),
        start_days: float = 0,
        days: int = 10,
    ) -> TlsFiles:
        """A certificate that is valid for `days` from `start_days` on; replaces one of the same stem."""
        wanted = CertificateRequest(name, uris=uris, addresses=addresses)
        start = datetime.now(UTC) + timedelta(days=start_days)
        keep(self.directory, {stem: issue(self._authority, wanted, start, days)})
        return self.files(stem)

    def server(self, stem: str = "server", *, addresses: tuple[str, ...] = LOOPBACK, start_days: int = 0) -> TlsFiles:
        return self.make(stem, "a server", addresses=addresses, start_days=start_days)

    def client(self, name: str, *, start_days: int = 0) -> TlsFiles:
        return self.make(name, name, uris=(URIS[name],), start_days=start_days)

    def files(self, stem: str) -> TlsFiles:
        return TlsFiles(
            certificate_path(self.directory, stem),
            key_path(self.directory, stem),
            certificate_path(self.directory, AUTHORITY),
        )


def flags(files: TlsFiles) -> list[str]:
    """As the services and the command line take them."""
    return [
        f"--tls-cert-file={files.certificate}",
        f"--tls-key-file={files.key}",
        f"--tls-ca-file={files.authorities}",
    ]


def transport(files: TlsFiles, server_name: str = "") -> Transport:
    return Transport(Credentials(files), server_name)


@pytest.fixture
def lab(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "lab")
