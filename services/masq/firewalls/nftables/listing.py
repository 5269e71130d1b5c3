"""What the rules of any program's chain say; a process of its own reads them.

libnftables lists a chain whole, and other programs have chains of 20,000 rules: that would keep the event loop, and
so every call, waiting. It is no library for two threads, and what it took for such a list it would keep.
"""

import asyncio
import json
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from services.core.errors import Unavailable
from services.masq.firewalls.nftables.library import Nftables
from services.runtime.logs import get_logger

log = get_logger()

PROGRAM: Final = (sys.executable, "-P", "-m", "services.masq.firewalls.nftables.listing")
_SECONDS: Final = 20.0
_LISTED: Final = re.compile(r"^\t+(.+[^{]) # handle (\d+)$", re.MULTILINE)

ChainPlace = tuple[str, str, str]
"""Family, table and name."""
Texts = dict[ChainPlace, dict[int, tuple[int, str]]]
"""Place and text of rules, by chain and handle."""


async def texts(wanted: Mapping[ChainPlace, Iterable[int]], program: Iterable[str] = PROGRAM) -> Texts:
    """Of the rules with these handles, but for those that went away meanwhile. Empty if they cannot be read."""
    if not wanted:
        return {}
    request = json.dumps([[*chain, sorted(handles)] for chain, handles in wanted.items()])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        process = await asyncio.create_subprocess_exec(
            *program, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
        )
    except OSError as error:
        return _none(error.strerror or str(error))
    try:
        async with asyncio.timeout(_SECONDS):
            answer, complaint = await process.communicate(request.encode())
    except TimeoutError:
        return _none(f"it takes more than {_SECONDS:g} s")
    finally:
        await _end(process)
    if process.returncode:
        return _none(complaint.decode(errors="replace").strip().rpartition("\n")[2])
    found: Texts = {}
    for family, table, chain, handle, place, text in json.loads(answer):
        found.setdefault((family, table, chain), {})[handle] = place, text
    return found


def _none(reason: str) -> Texts:
    log.warning("the rules that a packet met cannot be listed", reason=reason)
    return {}


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _listed(
    library: Nftables, chain: ChainPlace, handles: Iterable[int]
) -> Iterator[tuple[str, str, str, int, int, str]]:
    wanted = frozenset(handles)
    try:
        listing = library.text(f"list chain {' '.join(chain)}")
    except Unavailable:  # it went away meanwhile
        return
    for place, found in enumerate(_LISTED.finditer(listing)):
        if int(found[2]) in wanted:
            yield *chain, int(found[2]), place, found[1]


def main() -> None:
    """The process."""
    library = Nftables(as_json=False)
    request = json.load(sys.stdin)
    found = [
        rule for *chain, handles in request for rule in _listed(library, (chain[0], chain[1], chain[2]), handles)
    ]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
