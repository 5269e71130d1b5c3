"""A process without a descriptor that is free."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_descriptors() -> Iterator[None]:
    """No file and no socket can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
