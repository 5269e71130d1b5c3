"""Commands that show the state of the node and of the cluster."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from flannelette.services.ctl.cli.options import (
    IpAddress,
    for_any_node,
    for_every_node,
    in_each_network,
    node_file,
    prints,
    require_terminal,
    watched,
)

if TYPE_CHECKING:
    from flannelette.services.ctl.connect.contexts import Nodes
    from flannelette.services.ctl.connect.targets import Targets
    from flannelette.services.ctl.render.screen import Screen

_NO_TRACE: Final = (
    "--trace was removed: `nft monitor trace` shows what the kernel does with a packet "
    "(docs/operations.md has the commands); without --trace, explain answers from the rules"
)


@watched
@for_every_node
def status(nodes: "Nodes", screen: "Screen", watch: bool) -> int:
    """Show the state of this node, or of every node.

    Of several nodes each has a row, with its gravest problem;
    --on NODE shows one of them in full. Exits with 1 if a service is not ready
    or does not answer, and with 2 if none answers. If the lease service has no
    socket here, and the dataplane is connected to one, that one is central.
    With --watch, a pipe gets a line when a node changes.
    """
    from flannelette.services.ctl.live.status import status as show

    return show(nodes, screen, is_watching=watch)


@click.argument("services", nargs=-1, type=click.Choice(["lease", "dataplane", "masq"]), metavar="[SERVICE]...")
@click.option("--all", "everybody", is_flag=True, help="Also what all nodes have told the lease service.")
@click.option("--fix", is_flag=True, help="Carry out the cures that are safe, on this host, and look again.")
@click.option("--yes", is_flag=True, help="Do not ask before --fix.")
@in_each_network
def doctor(nodes: "Nodes", screen: "Screen", services: tuple[str, ...], everybody: bool, fix: bool, yes: bool) -> int:
    """Show the problems of the nodes and their cures.

    SERVICE is lease, dataplane or masq; the default is all. What loses packets
    comes first. Exits with 0 if there is no problem, with 1 if there is one, and
    with 2 if no service answers.

    --fix sets the sysctls that the overlay needs, puts back what the pods' bridge
    has lost, and turns a broken checksum offload of the overlay's devices off. It
    shows the commands and asks, needs root, deletes nothing, and leaves firewalls
    and other hosts alone: run it on each node. Each command is made and checked by
    this program; FLANNELD_SUBNET_FILE says where the dataplane has another file.
    """
    from flannelette.services.ctl.diagnose import doctor as examination

    if not fix:
        return asyncio.run(examination.doctor(nodes, screen, services, everybody=everybody))
    if not yes:
        require_terminal(screen)

    def confirm() -> None:
        if not yes:
            click.confirm("Carry this out?", abort=True, err=True)

    return asyncio.run(examination.fix(nodes, screen, services, node_file("SUBNET_FILE"), confirm))


@click.option(
    "--pod", "pods", type=IpAddress(), multiple=True, metavar="ADDRESS", help="Also ask this pod, from every node."
)
@click.option(
    "--outside",
    type=IpAddress(),
    multiple=True,
    metavar="ADDRESS",
    help="Also ask this address outside, masqueraded.",
)
@in_each_network
@prints("table", "json", "yaml", "junit")
def connectivity(
    nodes: "Nodes", screen: "Screen", pods: tuple[str, ...], outside: tuple[str, ...], output: str
) -> int:
    """Test who reaches whom, by pings of the dataplanes now.

    Every node of the context, or this one, asks every other: through the
    overlay and in the underlay, in each address family, with small and
    full-size packets; then a pod of every other node, from the address of its
    bridge of pods. What cannot be tested is shown, with the reason. Then doctor
    says what it knows. junit is XML for CI. Exits with 1 if something failed,
    with 2 if no node answers, and with 3 if nothing failed and something could
    not be tested.
    """
    from flannelette.services.ctl.diagnose.connectivity import connectivity as test

    return asyncio.run(test(nodes, screen, pods, outside, is_junit=output == "junit"))


@for_any_node
def leases(targets: "Targets", screen: "Screen") -> int:
    """Show which node holds which subnet.

    Exits with 1 if the table may be out of date.
    """
    from flannelette.services.ctl.commands.show import leases as show

    return asyncio.run(show(targets, screen))


@for_any_node
def nodes(targets: "Targets", screen: "Screen") -> int:
    """Show the nodes of the cluster and their progress.

    The column "behind" counts the changes that a node has not reported yet,
    "failed" the leases that it could not program. Exits with 1 if a node is not
    connected, is behind, or has failed leases. The lease service of one node knows the
    dataplane of that node only.
    """
    from flannelette.services.ctl.commands.show import nodes as show

    return asyncio.run(show(targets, screen))


@click.argument("name", required=False, default="")
@watched
@for_every_node
def peers(nodes: "Nodes", screen: "Screen", name: str, watch: bool) -> int:
    """Show the other nodes and their state in the kernel.

    Of several nodes each has a list. With NAME (a node or a lease), reads the kernel now, and shows the routes,
    neighbours and forwarding entries that the peer needs beside those that the
    kernel has, including conflicting ones of other programs. Exits with 1 if
    one is missing. With --watch, a pipe gets a line when a peer changes.
    """
    from flannelette.services.ctl.commands.show import peers as look
    from flannelette.services.ctl.follow import show_each

    return show_each(nodes, screen, look(name, wide=screen.wide), is_watching=watch)


@watched
@for_every_node
def rules(nodes: "Nodes", screen: "Screen", watch: bool) -> int:
    """Show the firewall rules, and the reason for each.

    Of several nodes each has a list. Exits with 1 if a rule is missing. With
    --watch, a pipe gets a line when a rule changes.
    """
    from flannelette.services.ctl.commands.show import rules as look
    from flannelette.services.ctl.follow import show_each

    return show_each(nodes, screen, look, is_watching=watch)


@click.argument("source")
@click.argument("destination")
@click.option("--mark", default="0", metavar="MARK", help="The packet's mark, such as 0x4000.")
@click.option("--trace", is_flag=True, hidden=True)
@watched
@for_every_node
def explain(
    nodes: "Nodes", screen: "Screen", source: str, destination: str, mark: str, trace: bool, watch: bool
) -> int:
    """Explain which source address a packet gets.

    SOURCE may be `pod`, for a pod of the node; of several nodes each explains. Also names a rule of another
    program that drops the packet. Exits with 1 if there is such a rule, or if a
    rule of ours is missing.
    """
    from flannelette.services.ctl.commands.show import explain as look
    from flannelette.services.ctl.follow import show_each

    if trace:
        raise click.UsageError(_NO_TRACE)
    try:
        number = int(mark, 0)
    except ValueError:
        raise click.BadParameter(f"{mark!r} is not a number: write 16384 or 0x4000", param_hint="--mark") from None
    explained = look("" if source == "pod" else source, destination, number)
    return show_each(nodes, screen, explained, is_watching=watch)


@in_each_network
@prints("text", "svg", "dot", "mermaid", "json")
def topology(nodes: "Nodes", screen: "Screen", output: str) -> int:
    """Draw the nodes and the links between them.

    Asks the lease service, and every node of the context for its links. Up to
    8 nodes are drawn one by one, more in groups by underlay and backend, with
    what is not well. dot is for Graphviz, mermaid for Markdown. Exits with 1
    if a node or a link is not well.
    """
    from flannelette.services.ctl.live.topology import topology as draw

    return asyncio.run(draw(nodes, screen, output))


@click.argument("source")
@click.argument("destination")
@click.option("--return", "whole_return", is_flag=True, help="Show every step of the return path too.")
@for_every_node
def trace(nodes: "Nodes", screen: "Screen", source: str, destination: str, whole_return: bool) -> int:
    """Follow a packet through the kernels of both nodes.

    SOURCE and DESTINATION are addresses of pods, or names of nodes, which stand
    for their address in the overlay. Shows every object that decides about the
    packet, such as the route or the firewall, and the first one that loses it
    with its cure. Sends no packet. The return path is one line unless it is broken.

    Without a context only this node is asked, which knows its half of the path.
    Exits with 0 if nothing is wrong, with 1 if the path there or back is broken,
    and with 2 if no dataplane answers.
    """
    from flannelette.services.ctl.diagnose.trace import trace as follow

    return asyncio.run(follow(nodes, screen, source, destination, whole_return=whole_return))


COMMANDS: Final = (status, doctor, connectivity, leases, nodes, peers, rules, topology, explain, trace)
