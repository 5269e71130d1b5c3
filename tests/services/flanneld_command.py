"""`flannelette flanneld` as a process on a host, with flanneld's command line."""

import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests import process_logs
from tests.hosts.masq import Host
from tests.patience import PATIENCE

PORT: Final = 8471


def foreign_directory(above: Path) -> Path:
    """A directory of another program, with a package that has the name of ours, which nothing of ours may import."""
    package = above / "foreign" / "services"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("raise SystemExit('this is a package of another program')\n")
    return package.parent


class Flanneld:
    """The program in a directory of its own, and what it shows."""

    def __init__(self, host: Host, directory: Path, *flags: str, **environment: str) -> None:
        self._host = host
        self.log = directory / "flanneld.log"
        self.subnet_file = directory / "subnet.env"
        command = (
            sys.executable,
            "-P",
            "-m",
            "flannelette.services.ctl.main",
            "flanneld",
            "--node=n1",
            "--iface=eth0",
        )
        places = (
            f"--socket-dir={directory}",
            f"--subnet-file={self.subnet_file}",
            f"--state-dir={directory}/state",
            f"--healthz-port={PORT}",
        )
        self.process = process_logs.started(
            [*command, *places, *flags],
            self.log,
            env=host.environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment,
            cwd=foreign_directory(directory),
        )

    def children(self) -> dict[str, int]:
        """Process ids by the name of the service, of those that have one of their own."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = {}
        for child in path.read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            matched = next(
                (m for word in words if (m := re.fullmatch(r"flannelette\.services\.(\w+)\.main", word.decode()))),
                None,
            )
            if matched:
                found[matched[1]] = int(child)
        return found

    def until_gone(self) -> None:
        """Until it has ended, and let go of the network namespace with its children."""
        self.process.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while any(f"@flannelette-{name}" in self._host.run("ss", "-xl") for name in ("dataplane", "masq")):
            assert time.monotonic() < deadline, "a service has outlived it"
            time.sleep(0.05)

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def until_ready(self) -> None:
        self.until(lambda: self.ask("/readyz") == (200, "flanneld is ready"))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)
