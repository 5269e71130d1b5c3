"""The way into a running lab from another terminal: `python -m lab.inside HOST [COMMAND...]`, `make shell HOST=`.

It runs a shell, or the command, in the network namespace of a host, of a pod or of the outside host. `flannelette`
is on the PATH there, and means that host.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from flannelette.services.core.formats.text import word_list
from lab.directory import where
from lab.private import user_id, way_in

MARK: Final = "FLANNELETTE_LAB_PRIVATE"
"""The variable of a lab's process that `private` sets."""
CONTEXTS: Final = "contexts.toml"
_COMMANDS: Final = (["-m", "lab"], ["-m", "lab.chaos"])
_RC: Final = Path(__file__).with_name("inside.bashrc")


class NoWayIn(Exception):
    """There is no such lab or host; the message is one line that says which there are."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab that runs."""

    directory: Path
    way_in: tuple[str, ...]
    """The command that enters its namespaces; put what to run behind it."""

    @property
    def contexts(self) -> Path:
        """The file with the sockets of its hosts."""
        return self.directory / CONTEXTS

    def names(self) -> list[str]:
        """The names of the lab's namespaces."""
        listed = subprocess.run([*self.way_in, "ls", "/run/netns"], capture_output=True, text=True, check=False)
        return sorted(listed.stdout.split())


def running(proc: Path = Path("/proc")) -> Iterator[Lab]:
    """The labs of this user, whose hosts are there."""
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or is somebody else's
            words = (process / "cmdline").read_text(errors="replace").split("\0")
            variables = dict(
                pair.split("=", 1)
                for pair in (process / "environ").read_text(errors="replace").split("\0")
                if "=" in pair
            )
            if words[1:3] in _COMMANDS and MARK in variables:
                yield _lab(int(process.name), variables)


def chosen(labs: Sequence[Lab], environment: Mapping[str, str]) -> Lab:
    """The only one, or that of FLANNELETTE_CONTEXTS. Raises NoWayIn."""
    if named := [lab for lab in labs if str(lab.contexts) == environment.get("FLANNELETTE_CONTEXTS")]:
        return named[0]
    if not labs:
        raise NoWayIn("no lab runs: start one in another terminal with `make lab`")
    if len(labs) > 1:
        each = word_list(f"FLANNELETTE_CONTEXTS={lab.contexts}" for lab in labs)
        raise NoWayIn(f"several labs run: say which one with export {each}")
    return labs[0]


def command(lab: Lab, host: str, words: Sequence[str]) -> list[str]:
    """Enters the namespace, and runs the words, or a shell with a prompt that names it. Raises NoWayIn."""
    names = lab.names()
    if host not in names:
        what = f"there is no {host!r} in this lab" if host else "say where"
        raise NoWayIn(f"{what}: make shell HOST=NAME, one of {', '.join(names) or 'none yet'}")
    variables = [f"FLANNELETTE_CONTEXTS={lab.contexts}", "FLANNELETTE_CONTEXT=lab"]
    if any((lab.directory / host).glob("dataplane*.sock")):
        variables.append(f"FLANNELETTE_ON={host}")
    return [
        *lab.way_in,
        "ip",
        "netns",
        "exec",
        host,
        "env",
        "-C",
        str(Path.cwd()),
        *variables,
        *(words or _shell(host)),
    ]


def bin_directory() -> Path | None:
    """Where `flannelette` is beside this Python; None: it is not installed."""
    scripts = Path(sys.prefix, "bin")
    return scripts if (scripts / "flannelette").exists() else None


def _lab(process: int, variables: Mapping[str, str]) -> Lab:
    mark = variables[MARK]
    parent = variables.get("TMPDIR") or "/tmp"  # noqa: S108 - what tempfile takes, too
    return Lab(Path(parent, where(user_id(mark)).name), tuple(way_in(mark, process).split()))


def _shell(host: str) -> list[str]:
    if bash := shutil.which("bash"):
        return [f"LAB_HOST={host}", bash, "--rcfile", str(_RC), "-i"]
    return [f"PS1=[{host}] $ ", "sh", "-i"]


def main(arguments: Sequence[str]) -> NoReturn:
    """Becomes the command, or ends with a line that says why not."""
    host, *words = arguments or [""]
    try:
        if host in ("-h", "--help"):
            sys.exit(__doc__)
        line = command(chosen(list(running()), os.environ), host, words)
    except NoWayIn as error:
        sys.exit(f"lab: {error}")
    if scripts := bin_directory():
        os.environ["PATH"] = f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.execvp(line[0], line)  # noqa: S606 - no shell, ours


if __name__ == "__main__":
    main(sys.argv[1:])
