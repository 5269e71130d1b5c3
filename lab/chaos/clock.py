"""`python -m lab.chaos.clock FILE MODULE ARGUMENT...`: runs a module whose wall clock differs by what a file says.

The file has one number of seconds (a C double), which may change at any time. The machine's clock is not touched,
and no other clock differs: the monotonic one never steps, and TLS, which is not in Python, asks the machine.
"""

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path
from typing import Final

OFFSET: Final = struct.Struct("=d")


def main() -> None:
    """Runs the module in the place of this one."""
    path, module, *arguments = sys.argv[1:]
    with Path(path).open("rb") as file:
        shared = mmap.mmap(file.fileno(), OFFSET.size, access=mmap.ACCESS_READ)
    real = time.time

    def stepped() -> float:
        (offset,) = OFFSET.unpack_from(shared)
        return real() + float(offset)

    time.time = stepped
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
