"""A virtual machine with Debian's kernel, for what the kernel of a container lacks: `python -m lab.vm -- COMMAND`.

The guest sees the files of this machine at the same paths, read-only under a layer in memory, and has no network but
its own loopback interface.
"""

import os
from typing import Final

GUEST_MARK: Final = "FLANNELETTE_IN_VM"
"""An environment variable of everything that runs in the guest."""


def is_guest() -> bool:
    """Whether this is the guest."""
    return GUEST_MARK in os.environ
