"""Structured logs on standard error: one line per decision, quiet in normal operation."""

import logging
import sys
import time
from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

_RICH: Final = "rich"
_NOT_FIELDS: Final = frozenset(("exc_info", "stack"))
"""What structlog renders in its own way."""


@contextmanager
def _without_rich() -> Iterator[None]:
    """structlog imports rich where it is installed, for tracebacks that we print plainly: 50 ms and 5 MB a start."""
    if _RICH in sys.modules:
        yield
        return
    sys.modules[_RICH] = None  # type: ignore[assignment]  # how Python marks what is not there
    try:
        yield
    finally:
        del sys.modules[_RICH]


with _without_rich():
    import structlog


def get_logger() -> Any:
    """What a module logs with, made once at its top."""
    return structlog.get_logger()


class LogLimiter:
    """Whether something is worth a line in the log: each thing once a minute, so that a fight does not fill it."""

    SECONDS: Final = 60.0

    def __init__(self) -> None:
        self._said: dict[Hashable, float] = {}

    def __call__(self, what: Hashable) -> bool:
        """True: say it."""
        now = time.monotonic()
        self._said = {each: when for each, when in self._said.items() if now - when < self.SECONDS}
        is_news = what not in self._said
        self._said.setdefault(what, now)
        return is_news


def plain(value: Any) -> Any:
    """A field's value as a reader wants it: `a, b` for several values, `k=v` for a mapping, text for an object."""
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
    """For the console, where a field without a value is left out. JSON has lists, mappings and null of its own."""
    return {
        name: value if name in _NOT_FIELDS else plain(value) for name, value in fields.items() if value is not None
    }


def configure_logs(service: str, log_format: str, verbosity: int) -> None:
    """Sets up structlog for this process. Call once, before the first line."""
    renderer: Any = (
        structlog.processors.JSONRenderer(default=_jsonable)
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
