"""The command line: its commands and what they take. What they do is imported when they run, so help is quick."""

import asyncio
import functools
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

import click

from services.ctl import event_commands, firewall_commands, kernel_commands, masq_commands, subnet_commands
from services.ctl.certs.commands import certs
from services.ctl.docker_options import docker_opts
from services.ctl.options import DEFAULT_SOCKET_DIR, Shared, shared_options
from services.ctl.sections import Sections

if TYPE_CHECKING:
    from services.ctl.screen import Screen
    from services.ctl.show import Targets

P = ParamSpec("P")

_EPILOG: Final = """\b
Exit codes:
  0  all is well
  1  a service answered, and something is not as it should be
  2  nobody could be asked (or wrong usage)

\b
Options may stand before or behind the command. From the environment:
FLANNELETTE_SOCKET_DIR, FLANNELETTE_LEASE, FLANNELETTE_DATAPLANE,
FLANNELETTE_MASQ, FLANNELETTE_TLS_CERT_FILE and so on. Addresses are
unix:PATH, a path, or HOST:PORT."""


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from services.runtime.version import version as installed

        click.echo(f"flannelette {installed()}")
        context.exit()


@click.group(
    cls=Sections,
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
    """Looks into the overlay network of this node, and repairs or removes it."""
    context.obj = Shared(**values)


def _command(function: Callable[Concatenate["Targets", "Screen", P], int], group: click.Group = cli) -> click.Command:
    """Makes a command of a function, which gets the addresses and the screen before its own parameters."""

    @group.command()
    @shared_options(environment=False)
    @click.pass_obj
    @functools.wraps(function)
    def invoke(outer: Shared, /, *args: Any, **values: Any) -> None:
        from services.ctl.connect import Failure, transport
        from services.ctl.screen import screen
        from services.ctl.targets import targets

        inner = Shared(**{name: values.pop(name) for name in Shared.__slots__})
        shared = outer.overridden_by(inner)
        try:
            code = function(
                targets(
                    shared.socket_dir or DEFAULT_SOCKET_DIR,
                    {"lease": shared.lease, "dataplane": shared.dataplane, "masq": shared.masq},
                    transport(shared),
                ),
                screen(shared.output or "table"),
                *args,
                **values,
            )
        except Failure as failure:
            click.echo(f"flannelette: {failure}", err=True)
            code = failure.exit_code
        sys.exit(code)

    return invoke


cli.add_command(certs)
cli.add_command(docker_opts)


@_command
def status(targets: "Targets", screen: "Screen") -> int:
    """How this node is: the lease service, the dataplane, masq.

    Exits with 1 if one of them is not ready or away, and with 2 if none
    answers. A lease service that has no socket here is taken for a central one
    as long as the dataplane is connected to it.
    """
    from services.ctl.show import status as show

    return asyncio.run(show(targets, screen))


@_command
@click.argument("services", nargs=-1, type=click.Choice(["lease", "dataplane", "masq"]), metavar="[SERVICE]...")
def doctor(targets: "Targets", screen: "Screen", services: tuple[str, ...]) -> int:
    """What is in the way on this node, and what cures it.

    SERVICE is lease, dataplane or masq; all of them by default. masq also looks
    at the rest of the host: policies, other firewalls, the kernel's settings.
    Exits with 0 if nothing is in the way, with 2 if no service answers.
    """
    from services.ctl.doctor import doctor as examine

    return asyncio.run(examine(targets, screen, services))


@_command
def leases(targets: "Targets", screen: "Screen") -> int:
    """Which node holds which subnet.

    Exits with 1 if the table may be out of date.
    """
    from services.ctl.show import leases as show

    return asyncio.run(show(targets, screen))


@_command
def nodes(targets: "Targets", screen: "Screen") -> int:
    """The nodes of the cluster, and how far each kernel is.

    Behind counts the changes that a node has not reported yet, failed the
    leases that it could not program. Exits with 1 if a node is not connected,
    behind, or short of a lease. The lease service of one node knows the
    dataplane of that node only.
    """
    from services.ctl.show import nodes as show

    return asyncio.run(show(targets, screen))


@_command
@click.argument("name", required=False, default="")
def peers(targets: "Targets", screen: "Screen", name: str) -> int:
    """The other nodes, and whether the kernel reaches them.

    NAME (a node or a lease) looks into the kernel now, and shows what the peer
    needs beside what is there: routes, neighbours and forwarding entries, also
    those of somebody else that are in the way. Exits with 1 if something is
    missing.
    """
    from services.ctl.show import peers as show

    return asyncio.run(show(targets, screen, name))


@_command
def watch(targets: "Targets", screen: "Screen") -> int:
    """Leases as they come, change and go, until Ctrl-C.

    `+` has come, `~` has changed, `-` has gone. Survives restarts of the lease
    service. With -o json one line per step.
    """
    from services.ctl.watch import watch as follow

    with suppress(KeyboardInterrupt):
        asyncio.run(follow(targets["lease"], screen))
    return 0


@_command
@click.option("--converged", is_flag=True, help="Until every connected node has every change in its kernel.")
@click.option("--cursor", default="", help="With --converged: every change up to here.  [default: up to now]")
@click.option("--ready", is_flag=True, help="Until the services of this node are ready, as status says.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=60, show_default=True, metavar="SECONDS", help="Give up then."
)
def wait(targets: "Targets", screen: "Screen", converged: bool, cursor: str, ready: bool, timeout: float) -> int:
    """Waits, and exits with 0 as soon as it is so.

    Exits with 1 when the time is over, and says who is pending; with 2 if
    nobody could be asked.
    """
    from services.ctl.wait import wait as until

    if not (converged or ready):
        raise click.UsageError("say what to wait for: --converged, --ready, or both")
    if cursor and not converged:
        raise click.UsageError("--cursor goes with --converged")
    if math.isnan(timeout):  # which no range refuses
        raise click.UsageError("--timeout is no number: write the seconds, for instance 60")
    return asyncio.run(until(targets, screen, ready=ready, converged=converged, cursor=cursor, seconds=timeout))


@_command
@click.option(
    "--delete", "keys", multiple=True, metavar="KEY", help="Delete this key from the store; may be repeated."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def quarantine(targets: "Targets", screen: "Screen", keys: tuple[str, ...], yes: bool) -> int:
    """What is in the store and not acted upon, and why.

    Keys that are no lease, leases that overlap another one or lie outside the
    network, and removals that are held back. Exits with 1 if there are any.
    """
    from services.ctl.quarantine import delete
    from services.ctl.quarantine import quarantine as show

    if not keys:
        return asyncio.run(show(targets["lease"], screen))
    if not yes:
        _require_terminal(screen)
        click.confirm(f"Delete {', '.join(keys)} from the store?", abort=True, err=True)
    return asyncio.run(delete(targets["lease"], screen, keys))


@_command
@click.option("--yes", is_flag=True, help="Do not ask.")
def confirm_removal(targets: "Targets", screen: "Screen", yes: bool) -> int:
    """Removes leases that the store lost and the guard keeps.

    Pods of the nodes that held them are then out of reach. Exits with 1 if
    there are none.
    """
    from services.ctl.quarantine import confirm_removal as confirm
    from services.ctl.quarantine import held

    if not yes:
        _require_terminal(screen)
        if asyncio.run(held(targets["lease"], screen)):
            click.confirm("Remove all of these leases?", abort=True, err=True)
    return asyncio.run(confirm(targets["lease"], screen))


_COMMANDS: Final = (
    *event_commands.COMMANDS,
    *firewall_commands.COMMANDS,
    *kernel_commands.COMMANDS,
    *subnet_commands.COMMANDS,
)
for _each in _COMMANDS:
    _command(_each)


@cli.group()
def masq() -> None:
    """The firewall rules of this node only.

    `flannelette masq teardown` is `flannelette teardown masq`, and so on.
    """


for _of_masq in masq_commands.COMMANDS:
    _command(_of_masq, masq)


def _require_terminal(screen: "Screen") -> None:
    if screen.json or not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: give --yes")


@cli.command()
def version() -> None:
    """The version of this program."""
    from services.runtime.version import version as installed

    click.echo(f"flannelette {installed()}")


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def flanneld(flags: tuple[str, ...]) -> None:
    """Runs the three services here, with flanneld's own FLAGS.

    For a first try in flanneld's place. Leases are in etcd, unless
    --kube-subnet-mgr or --store say otherwise. They end together. --help lists
    the flags.
    """
    os.execv(sys.executable, [sys.executable, "-m", "services.flanneld.main", *flags])  # noqa: S606 - no shell, ours


def main() -> None:
    """Runs the command line; never returns."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors are told in our words
    cli(prog_name="flannelette")


if __name__ == "__main__":
    main()
