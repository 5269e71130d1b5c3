"""The hosts whose dataplane and masq reach their lease service over TCP, with certificates that may have run out."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from lab.programs import Program
from lab.topology import Host
from services.core.access import Principal, Role
from services.ctl.certs.issue import Wanted, issue, make_authority, read_authority

_PORT: Final = 7070
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

    def write(self, host: Host, *, expired: bool = False) -> None:
        """Makes new certificates for its services, which are valid for a year, or ran out long ago."""
        begin = datetime.now(UTC) - (_LONG_AGO if expired else timedelta())
        for name, wanted in _wanted(host).items():
            issued = issue(self._authority, wanted, begin, days=1 if expired else 365)
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

    def _file(self, host: str, name: str, suffix: str) -> Path:
        return self._directory / f"{host}-{name}.{suffix}"


def _wanted(host: Host) -> Mapping[str, Wanted]:
    clients = {
        role.value: Wanted(role.value, [Principal(role, host.name).uri]) for role in (Role.DATAPLANE, Role.MASQ)
    }
    return {"lease": Wanted("lease", addresses=[str(host.address)]), **clients}
