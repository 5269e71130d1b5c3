"""The `flannelette` command: what there is, in a list. The file of a command is imported when that is called."""

import atexit
import errno
import os
import signal
import sys
import warnings
from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from threading import current_thread, main_thread
from types import TracebackType
from typing import Any, Final, NoReturn


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an error that nothing has caught, unless that is Ctrl-C, which is no error."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _ignored(told: "sys.UnraisableHookArgs") -> None:
    """Ends the command where Ctrl-C came in a destructor, from which Python would go on as if it had not.

    While a loop of asyncio has the signal, it was not the first one, and the loop ends already.
    """
    if not isinstance(told.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(told)
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        sys.stderr.write("\nAborted!\n")  # as click does
        _end(1)


def _end(code: int) -> NoReturn:
    """Ends the process with what it has printed and what is registered with atexit, and without Python's own end.

    That searches for garbage, which takes a fifth of the time of a command, and waits for threads of gRPC, where
    Ctrl-C would find things half gone.
    """
    atexit._run_exitfuncs()  # which os._exit leaves out
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # who reads has enough
            code = code or 1
        except OSError as error:
            code = _unwritten(error)
    os._exit(code)


def _unwritten(error: OSError) -> int:
    """Says that the output cannot be written, once: what is left of it goes nowhere. Returns the exit code."""
    sys.stderr.write(f"flannelette: cannot write what is printed: {error.strerror}\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


if sys.unraisablehook is sys.__unraisablehook__:  # a test run has its own
    # At once, because the imports below are most of the time of a short command.
    sys.excepthook, sys.unraisablehook = _uncaught, _ignored

try:
    import click
    from click.shell_completion import CompletionItem
except ModuleNotFoundError:
    sys.exit("flannelette: the command line needs the package click: pip install 'flannelette[ctl]'")

from flannelette.services.ctl.options import (  # noqa: E402 - Ctrl-C is heeded first
    Shared,
    fail,
    shared_options,
    write_options,
)

SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Inspect": {
        "status": ("status", "Show the state of this node, or of every node."),
        "nodes": ("nodes", "Show the nodes of the cluster and their progress."),
        "peers": ("peers", "Show the other nodes and their state in the kernel."),
        "leases": ("leases", "Show which node holds which subnet."),
        "rules": ("rules", "Show the firewall rules, and the reason for each."),
        "topology": ("topology", "Draw the nodes and the links between them."),
        "reservations": ("reservations", "Show the reserved subnets."),
        "addresses": ("addresses", "Show addresses reserved for pods here, and free lost ones."),
        "quarantine": ("quarantine", "Show the refused entries of the store."),
    },
    "Diagnose": {
        "doctor": ("doctor", "Show the problems of the nodes and their cures."),
        "connectivity": ("connectivity", "Test who reaches whom, by pings of the dataplanes now."),
        "trace": ("trace", "Follow a packet through the kernels of both nodes."),
        "explain": ("rules", "Explain which source address a packet gets."),
        "diff": ("kernel", "Show how the kernel differs from the desired state."),
        "capture": ("capture", "Capture packets between this node and another."),
        "sysdump": ("sysdump", "Collect everything for a bug report in one file."),
        "call": ("call", "Call a method of a service, as grpcurl does."),
    },
    "Follow": {
        "top": ("top", "Show the nodes, their traffic and their events, live."),
        "events": ("events", "Show what the services did, and why."),
        "watch": ("watch", "Follow the changes of leases, until Ctrl-C."),
        "wait": ("wait", "Wait for a condition, and exit with 0 once it holds."),
    },
    "Change the kernel": {
        "resync": ("kernel", "Reconcile the kernel with the leases."),
        "handover": ("kernel", "Hand the kernel state over to flanneld."),
        "teardown": ("kernel", "Remove the overlay from the kernel of this node."),
        "masq": ("masq", "Show, repair or remove the firewall rules only."),
        "cloud": ("cloud", "Show, write or remove routes in a cloud (aws-vpc, ...)."),
    },
    "Change leases and subnets": {
        "reserve": ("reservations", "Reserve a subnet, for one node or for none."),
        "unreserve": ("reservations", "Remove reservations."),
        "release": ("leases", "Release the lease of a node."),
        "reclaim": ("leases", "Reclaim the leases of nodes that are gone."),
        "renumber": ("leases", "Move a node to a subnet of the new network."),
        "confirm-removal": ("quarantine", "Remove the leases whose removal the guard holds back."),
    },
    "Set up": {
        "context": ("context", "Show or choose the cluster that commands are about."),
        "certs": ("certs", "Make certificates for TLS, for a lab."),
        "flanneld": ("", "Run the three services with flanneld's own FLAGS."),
        "docker-opts": ("docker_opts", "Write a file with docker's options for this node."),
        "dial-stdio": ("context", "Connect standard input and output to a service."),
        "help": ("", "Show the help of a command, or the options of all."),
        "version": ("", "Print the version of this command."),
    },
}
"""Commands by the heading of the list: the file of `commands`, if it is not this one, and the first sentence of the
command's help.
"""

_EXTRA: Final = {"cryptography": "cryptography", "rich": "rich", "yaml": "PyYAML"}
"""Modules of the extra ctl that a command imports when it runs, and their packages."""

_EPILOG: Final = """\b
Exit codes:
  0  all is well
  1  a service answered, and something is not as it should be
  2  no service answered (or wrong usage)"""


_ENVIRONMENT: Final = """\b
They may stand before or after the command. From the environment:
FLANNELETTE_SOCKET_DIR, FLANNELETTE_LEASE, FLANNELETTE_DATAPLANE,
FLANNELETTE_MASQ, FLANNELETTE_TLS_CERT_FILE and so on. Addresses are
unix:PATH, a path, or HOST:PORT. Contexts are in the file that
FLANNELETTE_CONTEXTS names, or ~/.config/flannelette/contexts.toml."""


class Listed(click.Command):
    """A command in the list, of which no more than its sentence is known."""

    def __init__(self, name: str, home: str, sentence: str) -> None:
        super().__init__(name, help=sentence)
        self._home = home

    def load(self) -> click.Command:
        """Imports the file of the command.

        Meanwhile Ctrl-C ends the process, and raises nothing: protobuf's module in C would crash of an exception.
        """
        is_raised = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_raised := is_raised and current_thread() is main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            module = import_module(f"flannelette.services.ctl.commands.{self._home}")
        finally:
            if is_raised:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        found = getattr(module, str(self.name).replace("-", "_"))
        assert isinstance(found, click.Command)  # noqa: S101 - for the type checker
        return found


LIST: Final = {
    name: Listed(name, home, sentence) for rows in SECTIONS.values() for name, (home, sentence) in rows.items()
}


class Commands(UserDict[str, click.Command]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        if isinstance(found := self.data[name], Listed):
            self.data[name] = found = found.load()
        return found


class Sections(click.Group):
    """A group whose help lists its commands by SECTIONS, each in one line."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        write_options(self, ctx, formatter, shared=False)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        room = formatter.width - 6 - max(map(len, LIST))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, LIST[name].get_short_help_str(room)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """See click."""
        named = [name for name in sorted(LIST) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=LIST[name].get_short_help_str()) for name in named]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.invoke(version)
        context.exit()


@click.group(
    cls=Sections,
    commands=Commands(LIST),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog=_EPILOG,
    no_args_is_help=True,
)
@shared_options(environment=True)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def cli(context: click.Context, /, **values: Any) -> None:
    """Show, repair or remove the overlay network of this node."""
    context.obj = Shared(**values)


@cli.command(name="help")
@click.argument("words", nargs=-1, metavar="[options|COMMAND]...")
@click.pass_context
def show_help(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, or the options of all."""
    outer, command = context.find_root(), context.find_root().command
    if words == ("options",):
        formatter = outer.make_formatter()
        write_options(command, outer, formatter, shared=True)
        formatter.write_paragraph()
        formatter.write_text(_ENVIRONMENT)
        click.echo(formatter.getvalue().strip())
        return
    for word in words:
        found = command.get_command(outer, word) if isinstance(command, click.Group) else None
        if found is None:
            raise click.UsageError(f"there is no command {' '.join(words)!r}")
        command, outer = found, click.Context(found, info_name=word, parent=outer)
    click.echo(command.get_help(outer))


@cli.command()
def version() -> None:
    """Print the version of this command."""
    from flannelette.services.runtime.process.version import version as installed

    click.echo(f"flannelette {installed()}")


class _Untouched(click.Command):
    """A command with words of another grammar: all of them are its argument, in their order, `--` among them."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Leaves nothing of the words to click."""
        context.params["flags"] = tuple(args)
        return []


@cli.command(cls=_Untouched, add_help_option=False)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def flanneld(flags: tuple[str, ...]) -> None:
    """Run the three services with flanneld's own FLAGS.

    For a first trial on a host that runs flanneld. Leases are in etcd, unless
    --kube-subnet-mgr or --store is given. If one service ends, all end. --help
    lists the flags.
    """
    os.execv(sys.executable, [sys.executable, "-P", "-m", "flannelette.services.flanneld.main", *flags])  # noqa: S606 - no shell, ours


def main() -> None:
    """Runs the command line, and ends the process; never returns."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our own messages report its errors
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)  # Ctrl-C came before
    try:
        code = _exit_code()
    finally:
        sys.unraisablehook = lambda _: None
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end(code)


def _exit_code() -> int:
    """Runs the command, and returns its exit code."""
    try:
        try:
            cli(prog_name="flannelette")
        except ModuleNotFoundError as error:
            package = _EXTRA.get(str(error.name).partition(".")[0])
            if package is None:
                raise
            fail(f"this command needs the package {package}: pip install 'flannelette[ctl]'")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return _unwritten(error)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


if __name__ == "__main__":
    main()
