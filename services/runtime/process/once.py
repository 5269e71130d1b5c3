"""A program that does one thing, prints what it did as JSON of a message, and ends."""

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson

from flannelette.services.core.errors import FlanneletteError, Misconfigured
from flannelette.services.runtime.process.settings import HelpRequested, parse_settings
from flannelette.services.runtime.telemetry.logs import configure_logs

S = TypeVar("S")


def run_once(program: str, kind: type[S], work: Callable[[S], Any]) -> int:
    """The exit code: 0 printed, 1 not possible here, 2 wrong usage. `work` gets the settings."""
    try:
        settings = parse_settings(kind, program, sys.argv[1:], os.environ)
    except HelpRequested as help_text:
        print(help_text)
        return 0
    except Misconfigured as error:
        print(error, file=sys.stderr)
        return 2
    configure_logs(program, "console", 0)  # to standard error: the answer alone is on standard output
    try:
        print(MessageToJson(work(settings), preserving_proto_field_name=True))
    except FlanneletteError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
