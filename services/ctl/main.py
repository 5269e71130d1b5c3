"""The `flannelette` command: makes click commands of the functions in cli. Help imports none of their work."""

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

try:
    import click
except ModuleNotFoundError:
    sys.exit("flannelette: the command line needs the package click: pip install 'flannelette[ctl]'")

from flannelette.services.core.formats.visible import visible
from flannelette.services.core.formats.word_list import word_list
from flannelette.services.ctl.certs.commands import certs
from flannelette.services.ctl.cli import cloud as cloud_routes
from flannelette.services.ctl.cli import contexts, diagnose, follow, kernel, show, subnets
from flannelette.services.ctl.cli.docker_opts import docker_opts
from flannelette.services.ctl.cli.options import FORMATS, OwnOnly, Sections, Shared, shared_options, write_options

if TYPE_CHECKING:
    from flannelette.services.ctl.connect.call import CallFailed
    from flannelette.services.ctl.connect.contexts import Nodes
    from flannelette.services.ctl.render.screen import Screen

P = ParamSpec("P")

_EXTRA: Final = {"cryptography": "cryptography", "rich": "rich", "yaml": "PyYAML"}
"""Of the extra ctl: the modules that a command imports when it runs, and their packages."""

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

_ONE: Final = ("svg", "dot", "mermaid", "junit")
"""Formats that are one document, so that they are about one network."""


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from flannelette.services.runtime.process.version import version as installed

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
    """Show, repair or remove the overlay network of this node."""
    context.obj = Shared(**values)


def _command(
    function: Callable[Concatenate[Any, "Screen", P], int], group: click.Group = cli, name: str = ""
) -> click.Command:
    """Makes a command of a function, which gets addresses and the screen before its own parameters.

    The addresses are Targets, those of one node, or Nodes where the function is marked as one for every node.
    """
    scope = getattr(function, "scope", "one")
    formats: tuple[str, ...] = getattr(function, "formats", FORMATS)

    @group.command(name or None, cls=OwnOnly)
    @shared_options(environment=False, formats=formats)
    @click.pass_obj
    @functools.wraps(function)
    def invoke(outer: Shared, /, *args: Any, **values: Any) -> None:
        from flannelette.services.core.errors import Misconfigured
        from flannelette.services.ctl.cli.nodes import nodes_of, one_of
        from flannelette.services.ctl.connect.call import CallFailed
        from flannelette.services.ctl.render.screen import screen

        inner = Shared(**{name: values.pop(name) for name in Shared.__slots__})
        shared = outer.overridden_by(inner)
        output = shared.output or formats[0]
        if output not in formats:
            raise click.UsageError(f"-o {output} is not for this command: give -o {word_list(formats)} after it")
        if formats is not FORMATS:
            values["output"] = output
        try:
            nodes = nodes_of(shared, is_named=bool(values.get("address")))
            if getattr(function, "each_network", False):
                code = _in_each_network(
                    nodes, screen(output), output in _ONE, lambda *where: function(*where, *args, **values)
                )
            else:
                where = nodes if scope == "every" else one_of(nodes, any_will_do=scope == "any")
                code = function(where, screen(output), *args, **values)
        except Misconfigured as error:
            raise click.UsageError(str(error)) from None
        except CallFailed as failure:
            code = _code_of(failure)
        sys.exit(code)

    return invoke


def _in_each_network(nodes: "Nodes", output: "Screen", is_one: bool, run: Callable[["Nodes", "Screen"], int]) -> int:
    """The worst exit code. Of several networks each has a heading, or a document of its own.

    Raises Misconfigured: there are several, and what is wanted is one document.
    """
    import asyncio

    from flannelette.services.core.errors import Misconfigured
    from flannelette.services.ctl.answers import by_network
    from flannelette.services.ctl.connect.call import CallFailed

    networks = asyncio.run(by_network(nodes))
    if is_one and len(networks) > 1:
        raise Misconfigured(f"this output is about one network: give --network {word_list(networks)}")
    codes = []
    for name, there in networks.items():
        try:
            codes.append(run(there, output.of_network(name)))
        except CallFailed as failure:
            codes.append(_code_of(failure))
    return max(codes)


def _code_of(failure: "CallFailed") -> int:
    """Tells why there is no answer."""
    click.echo(f"flannelette: {visible(str(failure))}", err=True)
    return failure.exit_code


cli.add_command(certs)
cli.add_command(docker_opts)
cli.add_command(contexts.context)


for _room in (show, diagnose, follow, kernel, subnets, contexts):
    for _function in _room.COMMANDS:
        _command(_function)


@cli.group()
def masq() -> None:
    """Show, repair or remove the firewall rules only.

    `flannelette masq teardown` is `flannelette teardown masq`, and so on.
    """


for _name, _of_masq in kernel.MASQ_COMMANDS.items():
    _command(_of_masq, masq, _name)


@cli.group()
def cloud() -> None:
    """Show, write or remove routes in a cloud (aws-vpc, ...)."""


for _name, _of_cloud in cloud_routes.CLOUD_COMMANDS.items():
    _command(_of_cloud, cloud, _name)


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
    """Runs the command line; never returns."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our own messages report its errors
    gc.set_threshold(100_000, 50, 20)  # what a command imports is no garbage, and is not searched
    atexit.register(gc.freeze)  # a fifth of the time of a command goes into a last search for garbage
    try:
        cli(prog_name="flannelette")
    except ModuleNotFoundError as error:
        package = _EXTRA.get(str(error.name).partition(".")[0])
        if package is None:
            raise
        sys.exit(f"flannelette: this command needs the package {package}: pip install 'flannelette[ctl]'")


if __name__ == "__main__":
    main()
