"""One recorded event as a line of JSON, written plainly and read strictly: the file may hold anything. Pure."""

import json
from enum import Enum
from typing import Any, Final
from zlib import crc32

from flannelette.services.core.limits import nearest_time
from flannelette.services.runtime.events.journal import MOST_NAMED, Event, RecordedEvent, Subject

_LARGEST: Final = 1 << 53
_SUM: Final = b',"sum":"%08x"}'
_SUM_BYTES: Final = len(_SUM % 0)


class BadRecord(ValueError):
    """The line is no event of this service."""


def encode(entry: RecordedEvent) -> bytes:
    """A line, of which the last member is a checksum of what is before it. What is at its default is left out."""
    event = entry.event
    row: dict[str, object] = {
        "position": entry.position, "time": entry.time, "kind": event.kind.name, "what": event.what
    }  # fmt: skip
    optional = {
        "cause": event.cause,
        "seconds": event.seconds,
        "cursor": entry.cursor,
        "subjects": event.subjects,
        "count": event.subject_count,
        "objects": event.objects,
        "repair": event.repair.name if event.repair else "",
    }
    row.update((name, value) for name, value in optional.items() if value)
    text = json.dumps(row, separators=(",", ":")).encode()
    return text[:-1] + _SUM % crc32(text) + b"\n"


def decode(line: bytes, kinds: type[Enum], repairs: type[Enum] | None) -> RecordedEvent:
    """The event. Raises BadRecord. A line without a checksum, as releases before 0.3 write them, counts as it is."""
    text, told = line.rstrip(b"\n")[:-_SUM_BYTES], line.rstrip(b"\n")[-_SUM_BYTES:]
    if told.startswith(_SUM[:7]) and told != _SUM % crc32(text + b"}"):
        raise BadRecord("the line does not match its checksum")
    try:
        row = json.loads(line)
        epoch, _, number = _text(row["position"]).partition(":")
        repair = _text(row.get("repair", ""))
        return RecordedEvent(
            _filled(epoch),
            _count(int(number)),
            nearest_time(_seconds(row["time"])),
            _text(row.get("cursor", "")),
            Event(
                kinds[_text(row["kind"])],
                _text(row["what"]),
                _text(row.get("cause", "")),
                _seconds(row.get("seconds", 0.0)),
                tuple(Subject(_text(name), _text(of)) for name, of in row.get("subjects", ())[:MOST_NAMED]),
                _count(row.get("count", 0)) % (1 << 32),
                _count(row.get("objects", 0)) % (1 << 32),
                repairs[repair] if repair and repairs else None,
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BadRecord(f"{type(error).__name__}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadRecord("no text")
    value.encode()  # half of a surrogate pair, which JSON may have and no message
    return value


def _filled(text: str) -> str:
    if not text:
        raise BadRecord("no position")
    return text


def _seconds(value: Any) -> float:
    if not (isinstance(value, float | int) and 0 <= value < _LARGEST):
        raise BadRecord("no time")
    return float(value)


def _count(value: Any) -> int:
    if not (isinstance(value, int) and 0 <= value < _LARGEST):
        raise BadRecord("no number")
    return value
