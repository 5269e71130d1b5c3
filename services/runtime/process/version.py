"""The version of the installed distribution."""

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version


@cache
def version() -> str:
    """Such as `0.1.0`; `unknown` when run from a tree that was never installed."""
    try:
        return installed_version("flannelette")
    except PackageNotFoundError:
        return "unknown"
