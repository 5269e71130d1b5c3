"""Which node holds which leases: an index beside the table, so that an own view costs one look."""

from collections.abc import Mapping, Set

from services.core.lease import Lease


class Holdings:
    """The leases of each node, by name; those that nobody holds are under the empty node."""

    def __init__(self) -> None:
        self._of_node: dict[str, dict[str, Lease]] = {}

    def of(self, node: str) -> Mapping[str, Lease]:
        """The leases that a node holds."""
        return self._of_node.get(node, {})

    @property
    def nodes(self) -> Set[str]:
        """The nodes that hold one."""
        return self._of_node.keys() - {""}

    def replace(self, before: Lease | None, after: Lease | None) -> None:
        """One lease is now another, new (`before` None) or gone (`after` None)."""
        if before is not None:
            held = self._of_node[before.node]
            del held[before.name]
            if not held:
                del self._of_node[before.node]
        if after is not None:
            self._of_node.setdefault(after.node, {})[after.name] = after
