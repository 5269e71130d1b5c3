"""The program `flannelette flanneld`: reads the command line, and runs the services in one process or as children."""

import os
import signal
import sys

from flannelette.services.core.errors import Misconfigured
from flannelette.services.flanneld.command import command_of
from flannelette.services.runtime.process.settings import HelpRequested, unknown_variables
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.logs import configure_logs, get_logger

log = get_logger()


def main() -> int:
    """The exit code: 0 stopped, 1 a service ended by itself or could not start, 2 wrong flags."""
    try:
        command = command_of(sys.argv[1:], os.environ)
    except HelpRequested as help_text:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # its reader may be `head`
        print(help_text)
        return 0
    except Misconfigured as error:
        print(f"flanneld: {error}", file=sys.stderr)
        return 2
    settings = command.settings
    if settings.version:
        print(f"flanneld (flannelette {version()})")
        return 0
    network = "" if command.is_separate else command.services[0].settings.served_network
    configure_logs("flanneld", settings.log_format, settings.v, network)
    for line in filter(None, (command.warning, *unknown_variables(type(settings), os.environ).values())):
        log.warning(line)
    if command.is_separate:
        from flannelette.services.flanneld import separate

        return separate.run(command)
    from flannelette.services.flanneld import together

    return together.run(command)


if __name__ == "__main__":
    sys.exit(main())
