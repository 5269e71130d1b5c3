"""Upgrades in a lab: prints as JSON what came of it.

python -m tests.upgrade there-and-back STORE PACKAGES quick|soak   from these packages to this release, and back
python -m tests.upgrade take-over STORE STATE                      this release starts where another one stopped
python -m tests.upgrade record STORE STATE [PACKAGES]              writes where this one stops, or the packages
"""

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path

from lab import private
from lab.directory import held, where
from lab.inside import MARK
from lab.options import Options
from tests.upgrade.golden import lay_out, record
from tests.upgrade.upgrade import Upgrade, taken_over, there_and_back


async def _run(directory: Path, what: str, store: str, *words: str) -> None:
    private.cancel_on_signals()
    first, second = Path(words[0]), words[1] if len(words) > 1 else ""
    old = {"there-and-back": first, "take-over": None, "record": Path(second) if second else None}[what]
    async with asyncio.TaskGroup() as group:
        upgrade = Upgrade(Options(nodes=3, store=store), directory, old, group)
        if what == "record":
            await record(upgrade, first)
        elif what == "take-over":
            print(json.dumps(await taken_over(upgrade, partial(lay_out, source=first))))
        else:
            print(json.dumps(await there_and_back(upgrade, in_every_order=second == "soak")))


def main() -> None:
    """In namespaces of its own."""
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    if not private.is_private(MARK):
        private.restart(MARK, [sys.executable, "-m", "tests.upgrade", *sys.argv[1:]])
    with held(where(private.user_id(os.environ[MARK]))) as directory:
        asyncio.run(_run(directory, *sys.argv[1:]))


if __name__ == "__main__":
    main()
