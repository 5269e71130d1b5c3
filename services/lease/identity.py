"""Whose request it is: one node's service answers for that node only, a central one for the node that is named."""

import re
from dataclasses import dataclass
from typing import Final

from services.core.errors import Forbidden, InvalidInput

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)


def check_name(node: str) -> None:
    """Raises InvalidInput for what is neither a node name nor empty."""
    if node and not _NAME.fullmatch(node):
        raise InvalidInput(
            f"node {node!r} is no node name: use letters, digits, dots, dashes and underscores, at most 253"
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """The node that this process serves."""

    node: str = ""
    """Empty: any (central)."""

    def any_node(self, asked: str) -> str:
        """The node of a request that need not name one; empty only on a central service.

        Raises Forbidden for another node's than ours, InvalidInput for what is no name.
        """
        check_name(asked)
        if self.node and asked not in ("", self.node):
            raise Forbidden(
                f"this lease service serves node {self.node} only, not {asked}: leave node empty, or ask the lease "
                f"service of {asked}"
            )
        return asked or self.node

    def one_node(self, asked: str) -> str:
        """The node of a request that is about one. Raises InvalidInput also when there is none, Forbidden."""
        node = self.any_node(asked)
        if not node:
            raise InvalidInput("node is empty: this lease service is central, so say for which node (--node)")
        return node
