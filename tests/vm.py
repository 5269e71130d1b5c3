"""`make vm-test`: every test with the marker `modules`, in one VM. `python -m tests.vm [ARGUMENTS OF PYTEST]`."""

import os
import signal
import subprocess
import sys
from typing import Final

from lab.charon import PACKAGES as CHARON_PACKAGES
from lab.vm.machine import Job, attempt
from tests.paths import ROOT
from tests.tools import CACHE

PACKAGES: Final = ("wireguard-tools", *CHARON_PACKAGES)
"""What the tests run beside the programs of this machine."""
RESULTS: Final = ROOT / ".build/vm"
"""What the tests write that is kept."""
_SECONDS: Final = 45 * 60
"""For all tests; the guest has a minute more, in which pytest says how they went."""


def files() -> list[str]:
    """The files with such tests: collecting all others takes minutes in the VM."""
    paths = (path for room in ("kernel", "e2e") for path in (ROOT / "tests" / room).rglob("test_*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in paths if "mark.modules(" in path.read_text())


def main(arguments: list[str]) -> int:
    """The exit code of pytest."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    names_files = any((ROOT / each.partition("::")[0]).exists() for each in arguments)
    options = ("-m", "modules", "-p", "no:cacheprovider", "-rfEs", "--durations=20", "--durations-min=5")
    command = [sys.executable, "-m", "pytest", *options, *arguments, *([] if names_files else files())]
    # Here first: what does not collect is told at once, and no module has to be compiled in the VM.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "services", "proto", "lab"], check=True)
    tools = ["flanneld", *(["kube-network-policies"] if any("policy_engines" in word for word in command) else [])]
    for tool in tools:
        subprocess.run(["sh", "lab/tools.sh", tool, CACHE], check=True)
    collected = subprocess.run([*command, "--collect-only"], capture_output=True, text=True, check=False)
    if collected.returncode:
        print(collected.stdout + collected.stderr)
        return collected.returncode
    # SIGINT ends pytest with a summary of what has run.
    limited = ["timeout", "--signal=INT", "--kill-after=50", str(_SECONDS), *command]
    variables = {"FLANNELETTE_BACKENDS": str(RESULTS / "backends")}
    return attempt(Job(limited, PACKAGES, [RESULTS], variables | os.environ, _SECONDS + 60))


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # the guest ends with us
    sys.exit(main(sys.argv[1:]))
