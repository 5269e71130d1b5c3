"""The parts of a dump: each is one file, without secrets; one that fails is a file that says why."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from flannelette.services.core.errors import FlanneletteError
from flannelette.services.core.formats.visible import visible
from flannelette.services.ctl.connect.call import CallFailed

MOST_BYTES: Final = 8 << 20
"""Of one part; of a longer one the end is left out, of a log the beginning."""
LEFT_OUT: Final = "(left out)"
NOT_COLLECTED: Final = "not collected: "
_AT_ONCE: Final = 8

_NAMES: Final = (
    r"username|passw(?:or)?d|passphrase|psk|secret|token|private[_-]?key|credential|accesskey|preshared[_-]?key"
)
_NAME: Final = re.compile(rf"(?i)(?:{_NAMES})")
_VALUE: Final = r"""(?P<quote>\\*["'])[^\n]*?(?<!\\)(?P=quote)|\\*["']?[^\s,;{}\[\]()"']+"""
"""With its quotes, which are escaped in a document in a document."""
_PATTERNS: Final = (
    (re.compile(r"-----BEGIN [^-\n]*-----.*?(?:-----END [^-\n]*-----|\Z)", re.DOTALL), LEFT_OUT),
    (re.compile(r"(?<![\w-])eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*"), LEFT_OUT),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {LEFT_OUT}"),
    (re.compile(r"""://[^/\s@"'<>]+@"""), f"://{LEFT_OUT}@"),
    (re.compile(rf"(?i)(?<!\S)(--?[\w-]{{0,40}}(?:{_NAMES})[\w-]{{0,40}}\s+)\S+"), rf"\1{LEFT_OUT}"),
)
_NAMED: Final = re.compile(rf"""(?i)((?:{_NAMES})[\w-]{{0,40}}\\*["']?\s*[:=]\s*)(?:{_VALUE})""")
_KEY: Final = re.compile(r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{43}=(?![A-Za-z0-9+/=])|\b0x[0-9a-fA-F]{32,}\b")


@dataclass(frozen=True, slots=True)
class Part:
    """One file to be: its name below the node's directory, and what gives its text, or what is written as JSON."""

    name: str
    collect: Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Collected:
    """One file of the archive."""

    name: str
    data: bytes
    failure: str = ""
    """Why the part is not there; `data` says it too."""


async def collect(parts: Iterable[Part], seconds: float) -> list[Collected]:
    """All parts, each without secrets, after so many seconds at most."""
    turns = asyncio.Semaphore(_AT_ONCE)
    until = asyncio.get_running_loop().time() + seconds

    async def one(part: Part) -> Collected:
        try:
            async with asyncio.timeout_at(until), turns:
                content = await part.collect()
        except TimeoutError:
            return failed(part.name, "not there within the time of --timeout")
        except (CallFailed, FlanneletteError, OSError) as error:
            return failed(part.name, str(error))
        text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        shown = visible(without_secrets(text), keeps="\n\t")
        return Collected(part.name, _cut(part.name, shown.encode(errors="replace")))

    return list(await asyncio.gather(*map(one, parts)))


def failed(name: str, reason: str) -> Collected:
    """The file in the place of a part that could not be collected."""
    reason = visible(without_secrets("; ".join(line.strip() for line in reason.splitlines())))
    return Collected(name, f"{NOT_COLLECTED}{reason}\n".encode(errors="replace"), reason)


def without_secrets(text: str) -> str:
    """The text without what looks like a secret: the second line of defence, for logs and what other programs print.

    Each key of 32 bytes, public ones too, becomes a digest: equal keys are still seen to be equal.
    """
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    text = _NAMED.sub(lambda found: f"{found[1]}{found['quote'] or ''}{LEFT_OUT}{found['quote'] or ''}", text)
    return _KEY.sub(lambda found: f"(key {sha256(found[0].encode()).hexdigest()[:8]})", text)


def names_a_secret(name: str) -> bool:
    """Whether the name of a setting or a field says that its value is secret."""
    return bool(_NAME.search(name))


def _cut(name: str, data: bytes) -> bytes:
    if len(data) <= MOST_BYTES:
        return data
    note = f"(cut off: {len(data)} bytes)\n".encode()
    return note + data[-MOST_BYTES:] if name.startswith("logs/") else data[:MOST_BYTES] + b"\n" + note
