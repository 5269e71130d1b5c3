"""Makes a command of a function: finds the nodes that it is about, runs it, and says why there is no answer."""

import asyncio
import functools
import inspect
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import click

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.text import word_list
from flannelette.services.ctl.answers import by_network
from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.connect.contexts import Nodes, nodes_of, one_of
from flannelette.services.ctl.options import FORMATS, Shared, fail, shared_options, write_options
from flannelette.services.ctl.screen import Screen, screen

Scope: TypeAlias = Literal["one", "any", "every", "networks"]
"""The nodes of a context that a command is about.

`one`: --on says which. `any`: the answer is the same from every node, and the first is asked. `every`: all of them,
or the one that --on names. `networks`: the same, for one network after the other where none of several is named.
"""
_ONE: Final = ("svg", "dot", "mermaid", "junit")
"""Formats that are one document, so that they are about one network."""


class OwnHelp(click.Command):
    """A command whose help has its own options and examples, and says where the options of every command are."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        write_options(self, ctx, formatter, shared=False)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_text("\b\n" + "\n".join(self.examples))


def command(
    name: str | None = None,
    *,
    group: click.Group | None = None,
    scope: Scope = "one",
    formats: Sequence[str] = FORMATS,
    examples: Sequence[str] = (),
    until_ctrl_c: bool = False,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function, which gets the services and the screen before its own parameters.

    The services are Targets, those of one node, or Nodes where the command is about several. The function returns the
    exit code, or is a coroutine that does. `formats` are those that `-o` may say, the default first; the screen has
    the chosen one. Where it runs `until_ctrl_c`, that is its end, and not a failure.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        @click.command(name, cls=OwnHelp, examples=examples)
        @shared_options(environment=False, formats=formats)
        @click.pass_obj
        @functools.wraps(function)
        def invoke(outer: Shared, /, **values: Any) -> None:
            shared = outer.overridden_by(Shared(**{each: values.pop(each) for each in Shared.__slots__}))
            output = shared.output or formats[0]
            if output not in formats:
                raise click.UsageError(f"-o {output} is not for this command: give -o {word_list(formats)} after it")

            def run(where: Any, shown_on: Screen) -> int:
                done = function(where, shown_on, **values)
                return int(asyncio.run(done) if inspect.iscoroutine(done) else done)

            try:
                nodes = nodes_of(shared, is_named=bool(values.get("address")))
                if scope == "networks":
                    sys.exit(_in_each_network(nodes, screen(output), output in _ONE, run))
                where = nodes if scope == "every" else one_of(nodes, any_will_do=scope == "any")
                sys.exit(run(where, screen(output)))
            except Misconfigured as error:
                raise click.UsageError(str(error)) from None
            except CallFailed as failure:
                fail(str(failure), failure.exit_code)
            except KeyboardInterrupt:
                if not until_ctrl_c:
                    raise

        if group is not None:
            group.add_command(invoke)
        return invoke

    return make


def _in_each_network(nodes: Nodes, output: Screen, is_one: bool, run: Callable[[Nodes, Screen], int]) -> int:
    """The worst exit code. Of several networks each has a heading, or a document of its own.

    Raises Misconfigured: there are several, and what is wanted is one document.
    """
    networks: Mapping[str, Nodes] = asyncio.run(by_network(nodes))
    if is_one and len(networks) > 1:
        raise Misconfigured(f"this output is about one network: give --network {word_list(networks)}")
    codes = []
    for name, there in networks.items():
        try:
            codes.append(run(there, output.of_network(name)))
        except CallFailed as failure:
            output.warn(str(failure))
            codes.append(failure.exit_code)
    return max(codes)


def require_terminal(screen: Screen, instead: str = "--yes") -> None:
    """Raises UsageError, with the option to give instead, if standard input is not a terminal."""
    if screen.json or not sys.stdin.isatty():
        raise click.UsageError(f"there is no terminal to ask on: give {instead}")


def carry_out(
    act: Callable[[bool], int],
    screen: Screen,
    question: str,
    would: str,
    *,
    dry_run: bool,
    yes: bool,
    is_worth_it: Callable[[int], bool] = lambda _: True,
) -> int:
    """Does what `act` does when it is called with False, and returns its exit code.

    Before that, unless `yes`, it is called with True, as in a dry run, and the question is asked, if the exit code of
    that says that it `is_worth_it`. `would` is what would happen, for who cannot be asked.
    """
    if dry_run:
        return act(True)
    if not yes:
        require_terminal(screen, f"--yes, or --dry-run to see what would {would}")
        code = act(True)
        if not is_worth_it(code):
            return code
        confirm(question)
    return act(False)


def confirm(question: str) -> None:
    """Asks on the terminal. Raises Abort unless the answer is yes.

    Ctrl-C ends it whenever it comes. A read of Python's own would not hear one that comes just before it begins.
    """
    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    former = signal.set_wakeup_fd(writer)
    try:
        select.select((sys.stdin, reader), (), ())
    finally:
        signal.set_wakeup_fd(former)
        os.close(reader)
        os.close(writer)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort
