"""A process that ends with its parent, however that ends: without a fork in Python, which gRPC may abort (#43055)."""

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_VARIABLE: Final = "FLANNELETTE_PARENT"


def with_parent() -> dict[str, str]:
    """What this process adds to the environment of a child that is to end with it."""
    return {_VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """If the parent asks for it: the kernel sends SIGTERM when that ends (prctl(2)); at once, if it has ended."""
    if parent := os.environ.pop(_VARIABLE, ""):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if parent != str(os.getppid()):
            os.kill(os.getpid(), signal.SIGTERM)
