"""The units of deploy/systemd, started by hand: there is no systemd in a test's namespaces.

`setpriv` gives what the units give: user, groups, capabilities.
"""

import subprocess
from collections.abc import Sequence
from configparser import RawConfigParser

from tests.pages.host import PageHost
from tests.patience import PATIENCE


class Systemctl:
    """What the page asks of systemd, for the units that were copied to where it looks."""

    def __init__(self, host: PageHost) -> None:
        self._host = host
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, unit: str, *program: str) -> None:
        """Starts a unit by itself; `program` takes the place of what it starts, with the same rights."""
        self._start(unit, program)

    def stop(self, unit: str) -> None:
        """Ends it as systemd does."""
        self._running[unit].terminate()
        assert self._running[unit].wait(PATIENCE) == 0

    def __call__(self, line: str) -> None:
        if line == "systemctl disable --now flannelette.target":
            for name in self._running:
                self._running[name].terminate()
            assert {process.wait(PATIENCE) for process in self._running.values()} == {0}
        elif line.startswith("systemctl restart "):
            name = f"{line.split()[-1]}.service"
            self._running[name].terminate()
            assert self._running[name].wait(PATIENCE) == 0
            self._start(name)
        elif line != "systemctl daemon-reload":
            assert line == "systemctl enable --now --no-block flannelette.target"
            wanted = self._read("flannelette.target", "Unit")["Wants"].split()
            assert sorted(wanted) == sorted(f"flannelette-{each}.service" for each in ("dataplane", "lease", "masq"))
            for unit in wanted:
                self._start(unit)

    def _start(self, name: str, program: Sequence[str] = ()) -> None:
        unit = self._read(name, "Service")
        bounding = "".join(
            f",+{right.removeprefix('CAP_').lower()}" for right in unit["CapabilityBoundingSet"].split()
        )
        inherited = bounding if "AmbientCapabilities" in unit else ""
        rights = (
            f"--reuid={unit['User']}",
            f"--regid={unit['Group']}",
            f"--groups={groups}" if (groups := unit.get("SupplementaryGroups")) else "--clear-groups",
            f"--bounding-set=-all{bounding}",
            f"--inh-caps=-all{inherited}",
            f"--ambient-caps=-all{inherited}",
            "--no-new-privs",
        )
        state = unit["StateDirectory"]
        self._host.type(f"install -d -o {unit['User']} -g {unit['Group']} -m 0700 /var/lib/{state}")
        lines = [unit.get("Environment", "")]
        for file in unit["EnvironmentFile"].splitlines():
            assert file.startswith("-"), "it may be missing"
            lines += self._host.tried(f"cat {file[1:]}").stdout.splitlines()
        variables = dict(line.split("=", 1) for line in lines if line)
        command = ("setpriv", *rights, *(program or unit["ExecStart"].split()))
        process = self._host.start(name, *command, umask=int(unit["UMask"], 8), **variables)
        self._running[name] = process

    def _read(self, unit: str, section: str) -> dict[str, str]:
        parser = RawConfigParser(strict=False, comment_prefixes=("#",), dict_type=_Repeated)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capital letters
        parser.read_string(self._host.type(f"cat /etc/systemd/system/{unit}"))
        return dict(parser[section])


class _Repeated(dict):  # type: ignore[type-arg]
    """Assignments of one name, one a line."""

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(key, [*self[key], *value] if isinstance(value, list) and key in self else value)
