"""The console script `flannelette`: the command line, or at once what `flannelette flanneld` runs."""

import gc
import runpy
import sys


def main() -> None:
    """Runs what the first word asks for; never returns.

    flanneld's place is taken by services, which need no command line: its import would make the start of a node a
    fifth longer.
    """
    gc.set_threshold(100_000, 50, 20)  # what a start imports is no garbage, and is not searched
    if sys.argv[1:2] == ["flanneld"]:
        del sys.argv[1]
        runpy.run_module("flannelette.services.flanneld.main", run_name="__main__", alter_sys=True)
    from flannelette.services.ctl.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
