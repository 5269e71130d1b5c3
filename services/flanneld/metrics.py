"""The metrics of the three services as one exposition; every sample gets a label `service`."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flannelette.services.runtime.telemetry.metrics import exposition

_SECONDS: Final = 2.0
_REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
_HEAD: Final = re.compile(r"# (?:HELP|TYPE) (\S+) ")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?( .+)")
_UP: Final = """\
# HELP flannelette_up 1 while the service answers, 0 otherwise
# TYPE flannelette_up gauge
flannelette_up {}
"""


async def collect(sockets: Mapping[str, Path]) -> tuple[str, bytes]:
    """Content type and exposition of this process and of the services that serve HTTP on these unix sockets.

    `flannelette_up` is 0 for a service that does not answer within two seconds; its other metrics are missing then.
    """
    kind, own = exposition()
    texts = await asyncio.gather(*(_fetch(path) for path in sockets.values()))
    services = {name: _UP.format(int(bool(text))) + text for name, text in zip(sockets, texts, strict=True)}
    return kind, merge({**services, "flanneld": own.decode()}).encode()


def merge(texts: Mapping[str, str]) -> str:
    """One exposition from the expositions of several services, by the name of the service.

    Every family is there once, with the HELP and TYPE of the first service that has it, and its samples together, as
    Prometheus' text format requires.
    """
    heads: dict[str, dict[str, None]] = {}
    samples: dict[str, list[str]] = {}
    for service, text in texts.items():
        family, known = "", frozenset(heads)
        for line in text.split("\n"):
            if head := _HEAD.match(line):
                family = head[1]
                if family not in known:
                    heads.setdefault(family, {})[line] = None
            elif sample := _SAMPLE.fullmatch(line):
                name, labels, value = sample.groups()
                rest = f",{labels}" if labels else ""
                samples.setdefault(family, []).append(f'{name}{{service="{service}"{rest}}}{value}')
    return "".join(f"{line}\n" for family in heads for line in (*heads[family], *samples.get(family, ())))


async def _fetch(path: Path) -> str:
    """The exposition that is served there; empty: nobody answered with one."""
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(_REQUEST)
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (TimeoutError, OSError):
        return ""
    return body.decode() if head.startswith(b"HTTP/1.1 200 ") else ""
