"""`python -m lab.vm`: options in, a command in the guest, its exit code out."""

import argparse
import os
import signal
import sys
from pathlib import Path

from lab.vm.machine import MEMORY, Job, attempt


def main(arguments: list[str]) -> int:
    """The command's exit code. 124: it took too long. 125: no VM can be had. 126: the VM failed. 130: interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.vm",
        description="Runs a command as root in a virtual machine (user-mode Linux). It sees the files of this "
        "machine; what it writes is lost, but for --share.",
        epilog=main.__doc__,
    )
    parser.add_argument("--package", action="append", default=[], help="a Debian package that the command needs")
    parser.add_argument("--share", action="append", default=[], type=Path, help="a directory that it may write to")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for the command")
    parser.add_argument("--seconds", type=float, help="how long the command may take; default: for ever")
    parser.add_argument("--memory", type=int, default=MEMORY, help="of the machine, in MiB; default: %(default)s")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    given = parser.parse_args(arguments)
    command = given.command[given.command[:1] == ["--"] :]
    if not command:
        parser.error("no command is given")
    if wrong := [path for path in given.share if not path.is_dir()]:
        parser.error(f"--share {wrong[0]}: there is no such directory")
    if wrong_values := [each for each in given.env if "=" not in each]:
        parser.error(f"--env {wrong_values[0]}: use NAME=VALUE")
    job = Job(
        command,
        given.package,
        [path.resolve() for path in given.share],
        {**os.environ, **dict(each.split("=", 1) for each in given.env)},
        given.seconds,
        given.memory,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return attempt(job)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
