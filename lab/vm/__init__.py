"""A virtual machine for what the kernel of a container lacks: `python -m lab.vm -- COMMAND`.

The guest is user-mode Linux: a kernel of Debian's sources that is an ordinary program of this machine. It needs
neither /dev/kvm nor privileges, and computes at the machine's own speed; system calls and page faults take several
times as long. It sees the files of this machine at the same paths, under a layer in memory that takes what it writes,
and has no network but its own loopback interface.
"""

import os
from typing import Final

GUEST_MARK: Final = "FLANNELETTE_IN_VM"
"""An environment variable of everything that runs in the guest."""
PATIENCE: Final = float(os.environ.get("FLANNELETTE_PATIENCE") or 1)
"""How many times as long as on a machine the lab waits; in the guest, which is slower, it is more than 1."""

_SLOWEST: Final = 8.0


def is_guest() -> bool:
    """Whether this is the guest."""
    return GUEST_MARK in os.environ


def load() -> str:
    """How busy this machine, or this guest, is: processes that run or wait to, over the last minute."""
    count = os.cpu_count() or 1
    return f"a load of {os.getloadavg()[0]:.1f} on {count} processor{'s' * (count > 1)}"


def times_as_long(load: float, processors: int) -> float:
    """How many times as long as on a quiet machine a guest takes, which has one processor; 8 at most."""
    return min(max((load + 1) / processors, 1.0), _SLOWEST)
