"""Values: classes that are dataclasses, are compared and hashed by their fields, and do not change."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Makes a class what `@dataclass(frozen=True, slots=True)` makes it, but only mypy rejects an assignment to a
    field.

    A check at run time would take more than half a microsecond for each object: a snapshot of 10,000 leases creates
    50,000. What `dataclass` compiles of a class at its import is compiled when it is used first: that was a seventh
    of the start of a node, and most of the 300 classes need one of the functions or none.
    """
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    for name, source in _SOURCES.items():
        if name not in cls.__dict__:
            setattr(made, name, _compiled_later(made, name, source))
    if "__repr__" not in cls.__dict__:
        setattr(made, "__repr__", _repr)  # noqa: B010 - mypy knows no such assignment
    return made


def _compiled_later(cls: Any, name: str, source: Callable[[Any, dict[str, Any]], str]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        names = dict[str, Any]()
        exec(source(cls, names), names)  # noqa: S102 - made of the names of our own fields
        function = names[name]
        function.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, function)
        return function(self, *args, **kwargs)

    return method


def _init(cls: Any, names: dict[str, Any]) -> str:
    """Takes the fields as `dataclass` does, and calls `__post_init__` where there is one."""
    names["_missing"], taken, keywords, lines = MISSING, list[str](), list[str](), list[str]()
    for each in fields(cls):
        value, default = each.name, ""
        if each.default_factory is not MISSING:
            names[f"_make_{each.name}"], default = each.default_factory, "=_missing"
            value = f"_make_{each.name}()" + (f" if {each.name} is _missing else {each.name}" if each.init else "")
        elif each.default is not MISSING:
            names[f"_default_{each.name}"], default = each.default, f"=_default_{each.name}"
            value = each.name if each.init else f"_default_{each.name}"
        if each.init:
            (keywords if each.kw_only else taken).append(each.name + default)
        if each.init or default:
            lines.append(f"self.{each.name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    arguments = ", ".join(["self", *taken, *(["*", *keywords] if keywords else [])])
    return f"def __init__({arguments}):\n " + "\n ".join(lines or ["pass"])


def _eq(cls: Any, names: dict[str, Any]) -> str:
    compared = [each.name for each in fields(cls) if each.compare]
    values = f"{_tuple('self', compared)} == {_tuple('other', compared)}"
    return f"def __eq__(self, other):\n return {values} if other.__class__ is self.__class__ else NotImplemented"


def _hash(cls: Any, names: dict[str, Any]) -> str:
    hashed = [each.name for each in fields(cls) if (each.compare if each.hash is None else each.hash)]
    return f"def __hash__(self):\n return hash({_tuple('self', hashed)})"


def _tuple(of: str, names: Iterable[str]) -> str:
    return "(" + "".join(f"{of}.{name}," for name in names) + ")"


def _repr(value: Any) -> str:
    shown = (f"{each.name}={getattr(value, each.name)!r}" for each in fields(value) if each.repr)
    return f"{type(value).__qualname__}({', '.join(shown)})"


_SOURCES: Final[Mapping[str, Callable[[Any, dict[str, Any]], str]]] = MappingProxyType(
    {"__init__": _init, "__eq__": _eq, "__hash__": _hash}
)
