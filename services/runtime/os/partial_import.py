"""Imports modules of a package without running the package's own `__init__`, which imports more than we use."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec


@contextmanager
def partial_import(package: str, *, kept: bool = True) -> Iterator[None]:
    """Lets `import package.module` in the block find the module in an empty package, without running `__init__`.

    A later import of the package itself runs `__init__`. With `kept` it uses the modules that the block imported:
    `from package import module` finds each of them, the attribute `package.module` only those that `__init__`
    imports. Without `kept` the later import loads all modules anew. If the package is imported already, the block
    changes nothing.
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
