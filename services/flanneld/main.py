"""`flannelette flanneld`: starts the three services, waits for them, and ends when one of them does."""

import asyncio
import os
import signal
import sys
from functools import partial

from flannelette.services.core.errors import Misconfigured
from flannelette.services.flanneld.flags import Child, children
from flannelette.services.flanneld.metrics import collect
from flannelette.services.flanneld.supervisor import health_before, supervise
from flannelette.services.runtime.process.settings import HelpRequested, unknown_variables
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.http import http_server
from flannelette.services.runtime.telemetry.logs import configure_logs, get_logger

log = get_logger()


def main() -> int:
    """The exit code: 0 stopped, 1 a service ended by itself or could not start, 2 wrong flags."""
    try:
        found, warning = children(sys.argv[1:], os.environ)
    except HelpRequested as help_text:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # its reader may be `head`
        print(help_text)
        return 0
    except Misconfigured as error:
        print(f"flanneld: {error}", file=sys.stderr)
        return 2
    settings = found[0].settings
    if settings.version:
        print(f"flanneld (flannelette {version()})")
        return 0
    configure_logs("flanneld", settings.log_format, settings.v)
    for line in filter(None, (warning, *unknown_variables(type(settings), os.environ).values())):
        log.warning(line)
    health = health_before(found)
    try:
        return asyncio.run(_serve(found, health))
    except Misconfigured as error:
        print(f"flanneld: {error}", file=sys.stderr)
        return 1


async def _serve(found: list[Child], health: Health) -> int:
    settings = found[0].settings
    metrics = partial(collect, {child.name: child.http_socket for child in found})
    async with http_server(settings.healthz_ip, settings.healthz_port, health, metrics):
        return await supervise(found, health)


if __name__ == "__main__":
    sys.exit(main())
