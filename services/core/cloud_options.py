"""Options of the backends of clouds: aws-vpc, gce, ali-vpc and tencent-vpc. Pure."""

import json
from typing import Final

from services.core.errors import InvalidInput
from services.core.formats.gojson import GoObject

CLOUDS: Final = ("aws-vpc", "gce", "ali-vpc", "tencent-vpc")
"""Backends whose routes are in a cloud's tables, and which nothing on a node has to carry."""


def route_table_ids(options: GoObject) -> tuple[str, ...]:
    """flannel's RouteTableID, a string or a list of them; empty: the tables are to be found. Raises InvalidInput."""
    text = options.compact("RouteTableID")
    value = json.loads(text) if text else None
    found = [value] if isinstance(value, str) else value or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput(
            "RouteTableID of Backend in the network configuration must be a string or a list of strings"
        )
    return tuple(dict.fromkeys(each for each in found if each))
