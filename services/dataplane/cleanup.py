"""`flannelette teardown --keep-foreign`: removes what a stopped dataplane has left, in a process of its own.

Prints what was done, or would be, as JSON of TeardownKernelResponse.
"""

import asyncio
import os
import socket
import sys
from dataclasses import dataclass
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from google.protobuf.json_format import MessageToJson

from services.core.errors import FlanneletteError, Misconfigured
from services.core.family import FAMILIES
from services.dataplane.beside_flanneld import leftovers
from services.dataplane.namespace import require_rights, sole_dataplane
from services.dataplane.netlink.notation import command
from services.dataplane.netlink.objects import steps, verb_of
from services.dataplane.netlink.socket import KernelSocket
from services.runtime.settings import HelpRequested, flag, parse_settings

_NAME: Final = "python -m services.dataplane.cleanup"
_ADVICE: Final = "`flannelette handover` has it leave everything to flanneld; stop it then"


@dataclass(frozen=True, kw_only=True)
class CleanupSettings:
    """What there is to say about it."""

    route_protocol: int = flag(77, "Number that marks our routes in the kernel, as the dataplane had it.")
    dry_run: bool = flag(False, "Change nothing.")


async def clean_up(kernel: KernelSocket, settings: CleanupSettings) -> pb.TeardownKernelResponse:
    """Carries out `leftovers`. Raises Misconfigured without NET_ADMIN, Unavailable."""
    await require_rights(kernel)
    routes = frozenset().union(*[await kernel.routes(family.af) for family in FAMILIES])
    ours = [route for route in routes if route.protocol == settings.route_protocol and route.onlink]
    devices = {(route.family, route.ifindex) for route in ours}
    neighbours = frozenset().union(*[await kernel.neighbours(*device) for device in devices])
    todo = leftovers(routes, neighbours, settings.route_protocol)
    failed = {} if settings.dry_run else await kernel.apply(todo)
    names = dict(socket.if_nameindex())
    return pb.TeardownKernelResponse(
        commands=[command(verb, item, names) for verb, items in steps(todo) for item in sorted(items)],
        errors=[f"{command(verb_of(todo, item), item, names)}: {why}" for item, why in failed.items()],
    )


def main() -> int:
    """The exit code: 0 printed, 1 not possible here, 2 wrong usage."""
    try:
        settings = parse_settings(CleanupSettings, _NAME, sys.argv[1:], os.environ)
    except HelpRequested as help_text:
        print(help_text)
        return 0
    except Misconfigured as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with sole_dataplane(_ADVICE), KernelSocket() as kernel:
            print(MessageToJson(asyncio.run(clean_up(kernel, settings)), preserving_proto_field_name=True))
    except FlanneletteError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
