"""The hosts whose dataplane and masq reach their lease service over TCP, with certificates that may have run out."""

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from flannelette.services.core.access import Principal, Role
from flannelette.services.ctl.certificates import CertificateRequest, issue, make_authority, read_authority
from lab.programs import Program
from lab.topology import Host

_PORT: Final = 7070
_PATIENCE: Final = 120.0
"""Seconds until a service listens that has just been killed."""
_LONG_AGO: Final = timedelta(days=30)


def uses_tls(host: Host) -> bool:
    """Every second host does."""
    return host.number % 2 == 1


class Certificates:
    """The authority of a run, and the files that it has made."""

    def __init__(self, directory: Path) -> None:
        made = make_authority("chaos", datetime.now(UTC) - _LONG_AGO, days=365)
        self._authority = read_authority(made.certificate, made.key)
        self._directory = directory
        self._ca = directory / "ca.crt"
        self._ca.write_bytes(made.certificate)

    def write(self, host: Host, *, lasts: float | None = None) -> None:
        """Makes new certificates for its services, which are valid for a year, or for so many seconds from now on."""
        begin = datetime.now(UTC) - (timedelta(days=1, seconds=-lasts) if lasts else timedelta())
        for name, wanted in _wanted(host).items():
            issued = issue(self._authority, wanted, begin, days=1 if lasts else 365)
            for suffix, content in (("crt", issued.certificate), ("key", issued.key)):
                path = self._file(host.name, name, suffix)
                new = path.with_suffix(f".{suffix}.new")
                new.write_bytes(content)
                new.rename(path)

    def changed(self, program: Program, host: Host) -> Program:
        """The same program, with TLS between the services of this host."""
        files = {"cert": "crt", "key": "key"}
        flags = [f"--tls-{name}-file={self._file(host.name, program.name, end)}" for name, end in files.items()]
        flags.append(f"--tls-ca-file={self._ca}")
        server = f"{host.address}:{_PORT}"
        if program.name == "lease":
            return replace(program, arguments=(*program.arguments, f"--listen={program.address},{server}", *flags))
        kept = (word for word in program.arguments if not word.startswith("--lease-address="))
        return replace(program, arguments=(*kept, f"--lease-address={server}", *flags))

    def distrust(self, host: Host) -> str:
        """Why a client does not trust its lease service, once that listens; empty: it does."""
        context, end = ssl.create_default_context(cafile=str(self._ca)), time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            with suppress(OSError), host.namespace.inside(), _connected(host) as connection:
                try:
                    context.wrap_socket(connection, server_hostname=str(host.address)).close()
                except ssl.SSLCertVerificationError as error:
                    return error.verify_message
                return ""
            time.sleep(0.1)
        return "it does not listen"

    def _file(self, host: str, name: str, suffix: str) -> Path:
        return self._directory / f"{host}-{name}.{suffix}"


def _connected(host: Host) -> socket.socket:
    return socket.create_connection((str(host.address), _PORT), _PATIENCE)


def _wanted(host: Host) -> Mapping[str, CertificateRequest]:
    clients = {
        role.value: CertificateRequest(role.value, [Principal(role, host.name).uri])
        for role in (Role.DATAPLANE, Role.MASQ)
    }
    return {"lease": CertificateRequest("lease", addresses=[str(host.address)]), **clients}
