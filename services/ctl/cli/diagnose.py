"""Commands that collect what others need to find out why packets do not pass."""

import asyncio
import math
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from flannelette.services.ctl.cli.options import Duration, IpAddress, for_every_node, prints

if TYPE_CHECKING:
    from flannelette.services.ctl.connect.contexts import Nodes
    from flannelette.services.ctl.connect.targets import Service, Targets
    from flannelette.services.ctl.render.screen import Screen


@click.option("--peer", metavar="NODE", required=True, help="The other node, or its lease.")
@click.option("--pod", type=IpAddress(), metavar="IP", help="Only packets of this pod, on either node.")
@click.option("-w", "--write", "path", metavar="FILE", default="", help="The pcapng file; - is standard output.")
@click.option(
    "--duration",
    "--seconds",
    "seconds",
    type=Duration(plain=1, least=1, most=600),
    default=30,
    metavar="DURATION",
    help="Longest time: 30s, 2m; a number is of seconds.  [default: 30s]",
)
@click.option(
    "--size", type=click.IntRange(1, 1024), default=10, show_default=True, metavar="MB", help="Most megabytes."
)
@click.option("-c", "--count", type=click.IntRange(1), default=None, metavar="N", help="Most packets.")
@click.option(
    "-s",
    "--snap-length",
    type=click.IntRange(64, 262_144),
    default=256,
    show_default=True,
    metavar="BYTES",
    help="Of each packet; the default is its headers.",
)
def capture(
    targets: "Targets",
    screen: "Screen",
    peer: str,
    pod: str | None,
    path: str,
    seconds: float,
    size: int,
    count: int | None,
    snap_length: int,
) -> int:
    """Capture packets between this node and another.

    Inner packets on the overlay device and outer ones in the underlay, in one
    file for Wireshark or tcpdump. Needs no tcpdump on the node.

    The file has what users send. Over TLS this needs a certificate of an
    administrator. One capture at a time runs on a node.
    """
    from flannelette.dataplane.v1.dataplane_pb2 import CapturePacketsRequest
    from flannelette.services.ctl.diagnose.capture import capture as write

    if not path or (path == "-" and sys.stdout.isatty()):
        raise click.UsageError("say where to write: -w FILE, or `-w - | tcpdump -n -r -` to look at once")
    request = CapturePacketsRequest(
        name=peer,
        pod=pod or "",
        seconds=math.ceil(seconds),
        bytes=size << 20,
        packets=count or 0,
        snap_length=snap_length,
    )
    return write(targets["dataplane"], screen, request, path)


@for_every_node
@click.option(
    "-w",
    "--write",
    "path",
    metavar="FILE",
    default="",
    help="The archive, a tar.gz; - is standard output.  [default: a new file here]",
)
@click.option("--host-only", is_flag=True, help="Only what this host shows, without the services' answers.")
@click.option(
    "--timeout",
    type=Duration(plain=1, least=1, most=3600),
    metavar="DURATION",
    default=60,
    help="What is not there by then is left out: 90s, 5m; a number is of seconds.  [default: 60s]",
)
def sysdump(nodes: "Nodes", screen: "Screen", path: str, host_only: bool, timeout: float) -> int:
    """Collect everything for a bug report in one file.

    Status, problems, leases, peers, plans, events, settings, metrics, logs,
    kernel objects and firewall rules, of this host or of all nodes of a context.
    Private keys, passwords and tokens are left out. A part that cannot be
    collected is a file that says why. Run it as root, to see everything.
    """
    from flannelette.services.ctl.diagnose.sysdump import sysdump as dump

    return asyncio.run(dump(nodes, screen, path, host_only=host_only, seconds=timeout))


@click.argument("service", type=click.Choice(["lease", "dataplane", "masq", "cloud"]), metavar="SERVICE")
@click.argument("method", required=False, default="")
@click.argument("json", required=False, default="")
@click.option("--describe", is_flag=True, help="Show what METHOD takes and gives, as in a .proto file.")
@click.option(
    "--timeout",
    type=Duration(plain=1, least=0.001),
    metavar="DURATION",
    help="Longest time: 2s, 2m; a number is of seconds.  [default: 60s; none for a stream]",
)
@for_every_node
@prints("json", "yaml")
def call(
    nodes: "Nodes",
    screen: "Screen",
    service: "Service",
    method: str,
    json: str,
    describe: bool,
    timeout: float | None,
    output: str,
) -> int:
    """Call a method of a service, as grpcurl does.

    SERVICE is lease, dataplane, masq or cloud. METHOD is a name such as
    GetStatus, or one with its service (grpc.health.v1.Health/Check); without
    METHOD the list of all. JSON is the request, {} if there is none; - reads it
    from standard input. What a method takes the service says itself, also one of
    another release. A stream prints an answer a line, until Ctrl-C.

    Exits with 1 if the service answers with an error, whose code comes first.
    """
    from flannelette.services.ctl.cli.nodes import one_of
    from flannelette.services.ctl.commands.call import call as ask
    from flannelette.services.ctl.connect.targets import with_cloud

    targets = one_of(nodes, any_will_do=service in ("lease", "cloud"))
    target = with_cloud(targets, is_asked=service == "cloud").get(service)
    if target is None:
        raise click.UsageError("flannelette-cloud is asked on its host, by its socket: run this command there")
    with suppress(KeyboardInterrupt):
        return asyncio.run(ask(target, screen, method, json, describes=describe, seconds=timeout))
    return 0


COMMANDS: Final = (capture, sysdump, call)
