"""`desired - actual`: the only way in which anything is changed."""

from collections.abc import Collection, Hashable, Set
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Slotted(Hashable, Protocol):
    """A value that lives in a slot of the kernel; a new value in the same slot replaces the old one."""

    @property
    def slot(self) -> Hashable:
        """Where it lives."""
        ...


T = TypeVar("T", bound=Slotted)


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """What to put (add or replace) and then what to delete. Both empty: everything is as it should be."""

    put: frozenset[T]
    delete: frozenset[T]

    def __len__(self) -> int:
        return len(self.put) + len(self.delete)


def plan(actual: Set[T], desired: Set[T], *, purge: bool = True) -> Plan[T]:
    """What brings `actual` to `desired`.

    A value whose slot is wanted for another value is replaced, never deleted. Without `purge` (no complete
    snapshot yet) nothing is deleted at all.
    """
    put = frozenset(desired - actual)
    # Most often all that is there is wanted, and then one comparison of two large sets is enough to know it.
    has_strangers = purge and len(actual) > len(desired) - len(put)
    strangers: Collection[T] = actual - desired if has_strangers else ()
    wanted = {value.slot for value in desired} if strangers else set()
    return Plan(put, frozenset(value for value in strangers if value.slot not in wanted))
