"""The version of this tree, as in pyproject.toml. To ask the installation for it takes 1 MB of memory."""

from typing import Final

VERSION: Final = "0.2.0"


def version() -> str:
    """Returns the version, such as `0.2.0`."""
    return VERSION
