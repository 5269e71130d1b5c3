"""Commands that collect what others need to find out why packets do not pass."""

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import click

from flannelette.services.ctl.cli.options import IpAddress, for_every_node

if TYPE_CHECKING:
    from flannelette.services.ctl.connect.contexts import Nodes
    from flannelette.services.ctl.connect.targets import Targets
    from flannelette.services.ctl.render.screen import Screen


@click.option("--peer", metavar="NODE", required=True, help="The other node, or its lease.")
@click.option("--pod", type=IpAddress(), metavar="IP", help="Only packets of this pod, on either node.")
@click.option("-w", "--write", "path", metavar="FILE", default="", help="The pcapng file; - is standard output.")
@click.option(
    "--seconds", type=click.IntRange(1, 600), default=30, show_default=True, metavar="N", help="Longest time."
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
    seconds: int,
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
        name=peer, pod=pod or "", seconds=seconds, bytes=size << 20, packets=count or 0, snap_length=snap_length
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
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    default=60.0,
    help="What is not there by then is left out.  [default: 60]",
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


COMMANDS: Final = (capture, sysdump)
