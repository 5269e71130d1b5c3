"""Values beside what `@dataclass(frozen=True, slots=True)` makes of the same class."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from flannelette.services.core.frozen import frozen


def of_all_kinds(decorator: Callable[[type], type]) -> Any:
    class Base:
        name: str
        size: int = 3
        many: list[int] = field(default_factory=list, hash=False)
        unseen: str = field(default="u", repr=False, compare=False)
        made: str = field(init=False, default="made")
        sum: int = field(init=False)
        word: str = field(default="w", kw_only=True)
        needed: int = field(kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "sum", self.size + self.needed)

    return decorator(Base)


def with_own_methods(decorator: Callable[[type], type]) -> Any:
    class Own:
        name: str
        more: int = 0

        def __repr__(self) -> str:
            return f"own {self.name}"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return 7

    return decorator(Own)


def inherited(decorator: Callable[[type], type]) -> Any:
    @decorator
    class First:
        name: str
        size: int = 1

    @decorator
    class Second(First):
        more: int = 2

    return Second


def empty(decorator: Callable[[type], type]) -> Any:
    return decorator(type("Empty", (), {}))


STANDARD = dataclass(frozen=True, slots=True)
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (of_all_kinds, ("a",), {"needed": 1}),
    (of_all_kinds, ("a", 4, [1], "v"), {"needed": 1, "word": "x"}),
    (of_all_kinds, ("a",), {}),
    (of_all_kinds, (), {"needed": 1}),
    (of_all_kinds, ("a", 1, [], "", "made", 2), {"needed": 1}),
    (of_all_kinds, ("a",), {"needed": 1, "other": 2}),
    (with_own_methods, ("a", 1), {}),
    (inherited, ("a",), {"more": 3}),
    (inherited, ("a", 2, 3), {}),
    (empty, (), {}),
    (empty, (1,), {}),
]


def told(make: Any, decorator: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> object:
    """What can be seen of an object: its text, its fields, what it is equal to; or the error of its creation."""
    cls = make(decorator)
    try:
        first, second = cls(*arguments, **named), cls(*arguments, **named)
    except TypeError as error:
        return str(error)
    changed = [
        replace(first, **{each.name: "B" if isinstance(getattr(first, each.name), str) else 9})
        for each in fields(cls)
        if each.init and each.name != "many"
    ]
    try:
        hashes = hash(first) == hash(second), [hash(first) == hash(each) for each in changed], len({first, second})
    except TypeError as error:
        hashes = str(error)  # type: ignore[assignment]
    return (
        repr(first).rpartition(".")[2],
        cls.__match_args__,
        [(each.name, getattr(first, each.name)) for each in fields(cls)],
        (first == second, first != second, [first == each for each in changed], first == 1),
        hashes,
        hasattr(first, "__dict__"),
    )


@pytest.mark.parametrize("call", CALLS, ids=[f"{number} {each[0].__name__}" for number, each in enumerate(CALLS)])
def test_a_value_is_what_a_frozen_dataclass_is(call: Any) -> None:
    make, arguments, named = call
    ours, theirs = told(make, frozen, arguments, named), told(make, STANDARD, arguments, named)
    assert ours == theirs


def test_values_of_two_classes_are_never_equal() -> None:
    first, second = inherited(frozen), inherited(frozen)
    assert first("a") != second("a")
    assert first("a") == first("a")


def test_a_default_list_is_not_shared() -> None:
    cls = of_all_kinds(frozen)
    one, other = cls("a", needed=1), cls("a", needed=1)
    one.many.append(1)
    assert other.many == []
