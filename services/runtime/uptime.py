"""A clock that nobody sets."""

import time


def uptime() -> float:
    """Seconds since the machine started, also those that it was suspended; whatever is done to its clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
