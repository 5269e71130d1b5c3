"""Structured logs on standard error: one line per decision, quiet in normal operation."""

import logging
import sys
import time
from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from io import StringIO
from textwrap import indent
from typing import Any, Final, TextIO, cast

from flannelette.services.core.formats.text import visible

_RICH: Final = "rich"
_NOT_FIELDS: Final = frozenset(("exc_info", "stack"))
"""Fields that structlog renders itself."""


@contextmanager
def _without_rich() -> Iterator[None]:
    """Hides rich from structlog, which would import it for tracebacks: 50 ms and 5 MB at each start."""
    if _RICH in sys.modules:
        yield
        return
    sys.modules[_RICH] = None  # type: ignore[assignment]  # how Python marks a module that does not exist
    try:
        yield
    finally:
        del sys.modules[_RICH]


with _without_rich():
    import structlog


def get_logger() -> Any:
    """The logger of a module, made once at its top."""
    return structlog.get_logger()


class LogLimiter:
    """Limits log lines to one a minute for each key, so that a repeated event does not fill the log."""

    SECONDS: Final = 60.0

    def __init__(self) -> None:
        self._logged: dict[Hashable, float] = {}

    def __call__(self, key: Hashable) -> bool:
        """Whether to log a line for this key now."""
        now = time.monotonic()
        self._logged = {each: when for each, when in self._logged.items() if now - when < self.SECONDS}
        is_due = key not in self._logged
        self._logged.setdefault(key, now)
        return is_due


def plain(value: Any) -> Any:
    """A field's value as text for people: `a, b` for several values, `k=v` for a mapping."""
    match value:
        case str() | bool() | int() | float():
            return value
        case Mapping():
            return ", ".join(f"{key}={plain(each)}" for key, each in value.items())
        case set() | frozenset():
            return ", ".join(sorted(str(plain(each)) for each in value))
        case list() | tuple():
            return ", ".join(str(plain(each)) for each in value)
    return str(value)


def _jsonable(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else plain(value)


def _plain_fields(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for the console: values as text on one line, and no fields without a value. JSON needs neither."""
    return {
        name: value if name in _NOT_FIELDS else _on_one_line(plain(value))
        for name, value in fields.items()
        if value is not None
    }


def _on_one_line(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _traceback(out: TextIO, failure: Any) -> None:
    """Every line indented, so that no text of an error looks like a line of the log."""
    written = StringIO()
    structlog.dev.plain_traceback(written, failure)
    out.write("\n" + indent(visible(written.getvalue().strip("\n"), keeps="\n"), "    "))


class _StandardError:
    """Standard error, of which a line that cannot be written is lost: a full disk of logs ends no service."""

    def write(self, text: str) -> None:
        """Writes it, if that can be."""
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Writes what waits, if that can be; else it waits further."""
        with suppress(OSError):
            sys.stderr.flush()


def configure_logs(service: str, log_format: str, verbosity: int, network: str = "") -> None:
    """Configures structlog for this process; to be called once, before the first line.

    Each line has the key `service`, and `network` if the network of the process has a name.
    """
    renderer: Any = (
        structlog.processors.JSONRenderer(default=_jsonable)
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.dict_tracebacks if log_format == "json" else _plain_fields,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbosity > 0 else logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _StandardError())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, **({"network": network} if network else {}))


def label_lines(service: str) -> None:
    """Gives the lines of this task, and of those that it makes, the key `service`."""
    structlog.contextvars.bind_contextvars(service=service)
