"""Runs a service as `python -m` does, and records the calls of its functions: traced.py FILE MODULE ARGUMENT...

Each call of a function below a folder `services` becomes a line of the file: nanoseconds (CLOCK_MONOTONIC), the path
and the function. A coroutine that goes on after a wait is called again. `python -P` keeps the folder of this file
off the path of the service, which has a package of the same name as one there. For tests/ways.py.
"""

import os
import runpy
import sys
import threading
import time
from types import CodeType, FrameType


def record_calls(path: str) -> None:
    """Records the calls of this thread, and of those that start later."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    names: dict[CodeType, bytes] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = names.get(code)
        if name is None:
            name = names[code] = _name_of(code)
        if name:
            os.write(file, b"%d %b\n" % (time.monotonic_ns(), name))

    threading.setprofile(note)
    sys.setprofile(note)


def _name_of(code: CodeType) -> bytes:
    """Names a function of services/; empty for others, lambdas and comprehensions."""
    _, found, below = code.co_filename.rpartition("/services/")
    is_function = bool(found) and not code.co_name.startswith("<")
    return f"services/{below}::{code.co_qualname}".encode() if is_function else b""


if __name__ == "__main__":
    _, recorded, module, *sys.argv[1:] = sys.argv
    record_calls(recorded)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
