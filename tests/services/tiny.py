"""The smallest service there can be, for tests of the process plumbing: python -m tests.services.tiny --jobs=..."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.runtime.process.process import Process, run
from flannelette.services.runtime.process.settings import ProcessSettings, flag


@dataclass(frozen=True, kw_only=True)
class TinySettings(ProcessSettings):
    ends: str = flag("", "How it ends: a `defect` or an `error` in a job, `build` before it starts.")
    becomes_ready: bool = flag(True, "Whether it does.")


@asynccontextmanager
async def build(settings: TinySettings, process: Process) -> AsyncIterator[None]:
    if settings.ends == "build":
        raise Misconfigured("it cannot start: do this")

    async def job() -> None:
        process.health.set("tiny", "" if settings.becomes_ready else "it never is")
        if settings.ends == "defect":
            raise ZeroDivisionError("a defect")
        if settings.ends == "error":
            raise Unavailable("what it needs is gone: bring it back")
        await asyncio.Event().wait()

    process.health.set("tiny", "not started")
    process.jobs["job"] = job
    yield
    print("freed", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run("tiny", TinySettings, build))
