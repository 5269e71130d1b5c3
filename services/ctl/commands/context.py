"""`flannelette context`, and `dial-stdio`, the far side of a context that reaches its nodes by a command."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from flannelette.services.core.errors import Misconfigured
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import diagnose
from flannelette.services.ctl.connect.contexts import contexts_path, read_contexts
from flannelette.services.ctl.connect.contexts import use as use_context
from flannelette.services.ctl.connect.dial import MISSING, carry
from flannelette.services.ctl.connect.targets import Targets, networks_with_sockets
from flannelette.services.ctl.screen import Screen, screen, table


@click.group(no_args_is_help=True)
def context() -> None:
    """Show or choose the cluster that commands are about.

    The file of contexts is ~/.config/flannelette/contexts.toml, or the one that
    FLANNELETTE_CONTEXTS names; docs/operations.md says what it has.
    """


@context.command("list")
def list_contexts() -> None:
    """List the contexts and their nodes."""
    with _usage_errors():
        found = read_contexts(contexts_path())
    rows = [
        (
            (name,),
            ("yes",) if name == found.current else (),
            ("by kubectl",) if each.pods else (", ".join(each.places),),
        )
        for name, each in found.by_name.items()
    ]
    output = screen("table")
    if rows:
        output.show(table(("CONTEXT", "CURRENT", "NODES"), rows, output.width))
    else:
        output.warn(f"there are no contexts in {found.path}")


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Write into the file that commands are about this context."""
    with _usage_errors():
        use_context(contexts_path(), name)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except Misconfigured as error:
        raise click.UsageError(str(error)) from None


@command()
@click.argument("service", type=click.Choice(["lease", "dataplane", "masq", "networks"]), metavar="SERVICE")
def dial_stdio(targets: Targets, _screen: Screen, service: str) -> int:
    """Connect standard input and output to a service.

    What `via` of a context runs on a node, so that the service needs no open
    port. SERVICE is lease, dataplane or masq. Exits with 3 if there is no socket.
    `networks` lists the names of networks that have sockets of their own.
    """
    if service == "networks":
        click.echo(" ".join(networks_with_sockets(targets)))
        return 0
    target = targets[service]  # type: ignore[index]  # click has checked it
    if target.dialer:
        raise click.UsageError("this would be dialed itself: call it without a context, on the node")
    if target.path is None:
        raise click.UsageError(f"{target.address} is no socket: call it from where you are")
    if sys.stdin.isatty():
        raise click.UsageError("the input is a terminal: this is for `via` of a context")
    try:
        carry(Path(target.path))
    except OSError as error:
        problem = diagnose(target, str(error))
        click.echo(f"flannelette: {problem.sentence}", err=True)
        return MISSING if problem.missing else 2
    return 0
