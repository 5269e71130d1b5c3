"""Values of which there are ten thousands, made in a third of the time."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """As `@dataclass(frozen=True, slots=True)`, but only mypy sees to it that nobody assigns to a field.

    What would refuse that at run time costs more than half a microsecond whenever a lease is made: a snapshot of ten
    thousand makes five records for each of them, here and in every client.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)  # hashed by value, as what is frozen is
