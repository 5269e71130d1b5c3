"""`make kube-test`: the tests of this folder. `python -m tests.kube [--if-built] [ARGUMENTS OF PYTEST]`."""

import os
import subprocess
import sys
from typing import Final

from lab.kubernetes import parts
from lab.kubernetes.options import POLICIES
from lab.show import Screen
from tests.paths import ROOT

_IF_BUILT: Final = "--if-built"
_NOT_BUILT: Final = 125
_OPTIONS: Final = ("-m", "kube", "-p", "no:cacheprovider", "-rfEs", "--durations=0", "--durations-min=5")


def main(arguments: list[str]) -> int:
    """The exit code of pytest. The parts are built here, for the tests cannot reach the machine's network.

    With `--if-built` only what has changed is built, which takes a minute; 125: some were never built.
    """
    os.chdir(ROOT)
    if _IF_BUILT in arguments:
        arguments = [each for each in arguments if each != _IF_BUILT]
        never = [part.title for part in parts.all_parts() if not all(path.exists() for path in part.made)]
        if never:
            print(f"kube-test is skipped: {', '.join(never)} are not built yet; make kube-test builds them")
            return _NOT_BUILT
    if os.geteuid():
        print("kube-test: kubelets need root: sudo make kube-test", file=sys.stderr)
        return 2
    try:
        with parts.locked():
            parts.build_missing(Screen(), POLICIES[0])
    except parts.PartMissing as error:
        print(f"kube-test: {error}", file=sys.stderr)
        return 1
    names_files = any((ROOT / each.partition("::")[0]).exists() for each in arguments)
    chosen = () if names_files else ("tests/kube",)
    return subprocess.run([sys.executable, "-m", "pytest", *_OPTIONS, *arguments, *chosen], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
