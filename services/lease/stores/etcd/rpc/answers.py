"""What an answer of etcd must be to be believed. A member that sends anything else is left, and all listed anew."""

from itertools import pairwise
from typing import Any, Final

_LATEST: Final = 1 << 62
"""Largest revision that is believed: no etcd gets so far, and sums with it are still numbers of a message."""
_MOST_SECONDS: Final = 1 << 40


def flaw_in(call: str, request: Any, response: Any) -> str:
    """Why this cannot be etcd's answer to a call; empty: it can. None is an answer that cannot be parsed."""
    if call == "lease_keep_alive" and response is None:
        return ""  # the stream has ended: there is no such etcd lease
    if response is None:
        return "bytes that are no answer"
    match call:
        case "range":
            return _flaw_in_page(request, response)
        case "txn":
            return _flaw_in_revision(response.header.revision)
        case "lease_grant" | "lease_keep_alive" | "lease_time_to_live":
            is_sane = max(abs(response.TTL), abs(getattr(response, "grantedTTL", 0))) < _MOST_SECONDS
            return "" if is_sane else f"an etcd lease of {response.TTL} s"
        case "authenticate":
            return "" if response.token.isascii() and response.token.isprintable() else "a token that is no text"
    return ""


def flaw_in_message(response: Any) -> str:
    """Why this cannot be a message of etcd's watch; empty: it can."""
    if response is None:
        return "bytes that are no answer"
    if response.canceled or response.compact_revision:
        return ""
    latest = response.header.revision
    if flaw := _flaw_in_revision(latest):
        return flaw
    wrong = next(
        (event.kv.mod_revision for event in response.events if not 0 < event.kv.mod_revision <= latest), None
    )
    return "" if wrong is None else f"an event of revision {wrong}, at revision {latest}"


def _flaw_in_page(request: Any, response: Any) -> str:
    latest, keys = response.header.revision, [kv.key for kv in response.kvs]
    if flaw := _flaw_in_revision(latest):
        return flaw
    if response.more and not keys:
        return "a page without keys, and says that there are more"
    end = request.range_end or request.key + b"\0"
    if any(not request.key <= key < end for key in keys) or any(a >= b for a, b in pairwise(keys)):
        return "keys that were not asked for"
    wrong = next((kv for kv in response.kvs if not 0 <= kv.create_revision <= kv.mod_revision <= latest), None)
    return "" if wrong is None else f"a key of revision {wrong.mod_revision}, at revision {latest}"


def _flaw_in_revision(revision: int) -> str:
    return "" if 0 < revision < _LATEST else f"revision {revision}"
