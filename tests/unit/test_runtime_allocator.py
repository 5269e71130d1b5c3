"""What a process needed once does not stay with it."""

import subprocess
import sys

_SETS = """
from services.runtime import allocator
allocator.configure()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before, kept = resident(), []
for _ in range(2):
    dropped = []
    for _ in range(100):
        dropped.append(set(range(30_000)))  # 1 MiB
        kept.append(bytearray(2_000))  # between them
    del dropped
print((resident() - before) / 2**20)
"""


def test_large_sets_that_are_dropped_go_back_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", _SETS], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 4
