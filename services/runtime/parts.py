"""Imports parts of a package without what the package itself imports."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec


@contextmanager
def parts_of(package: str, *, kept: bool = True) -> Iterator[None]:
    """While the block imports modules of the package, it stands there with its place and nothing in it.

    Whoever imports the package afterwards gets all of it, with the same parts: `from package import part` finds each,
    `package.part` only what the package itself imports. Not `kept`, he gets others, and finds all of them both ways.
    Where the package is imported already, nothing is different.
    """
    spec = None if package in sys.modules else find_spec(package)
    if spec is None:
        yield
        return
    sys.modules[package] = module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[package]
        if not kept:
            for part in [name for name in sys.modules if name.startswith(f"{package}.")]:
                del sys.modules[part]
