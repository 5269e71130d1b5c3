"""A program that cannot be started is an outcome with a reason, whatever the system lacks."""

import os
import resource
from pathlib import Path
from typing import Final

import pytest

from flannelette.services.dataplane.commands import run_program

_DESCRIPTORS: Final = Path("/proc/self/fd")


@pytest.mark.parametrize("free", range(12))
async def test_a_lack_of_descriptors_is_a_reason_and_leaves_none_open(free: int) -> None:
    opened = set(_DESCRIPTORS.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)  # the lowest number that is free
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, hard))
    try:
        outcome = await run_program(["true"], {}, "", 5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcome.error in {"", "cannot run true: Too many open files"}
    assert outcome.error or free
    assert set(_DESCRIPTORS.iterdir()) == opened, "descriptors are left"
