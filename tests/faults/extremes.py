"""Messages of which one field is at an extreme of its type, by the descriptors of the .proto files."""

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

M = TypeVar("M", bound=Message)

_INT32: Final = (0, -1, 1, 2**31 - 1, -(2**31))
_INT64: Final = (0, -1, 1, 2**62, -(2**62), 2**63 - 1, -(2**63), -3 * 10**11, 253_402_300_799, 253_402_300_800)
_TEXTS: Final = (
    "",
    "\0",
    " ",
    "-1",
    "1e999",
    "NaN",
    "null",
    "{}",
    "9" * 5000,
    "[" * 5000,
    "\U0010ffff\u202e\x1b[31m",
    "../../%s{0}",
    "0.0.0.0/0",
    "::ffff:1.2.3.4",
    "ff:ff:ff:ff:ff:ff",
    "a" * 70_000,
)
_EXTREMES: Final[dict[int, tuple[Any, ...]]] = {
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_UINT32: (0, 1, 2**31, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**62, 2**64 - 1),
    FieldDescriptor.TYPE_ENUM: _INT32,
    FieldDescriptor.TYPE_STRING: _TEXTS,
}
_DEEPEST: Final = 6


def one_at_an_extreme(base: M) -> Iterator[tuple[str, M]]:
    """The base with each of its fields in turn, at every depth, at each extreme of its type, and what was done."""
    for path, field in _fields(base.DESCRIPTOR):
        for number, value in enumerate(_values(field)):
            changed = type(base)()
            changed.CopyFrom(base)
            _put(changed, path, field, value)
            yield f"{'.'.join(each.name for each in path)}.{field.name}[{number}]".lstrip("."), changed


def several_at_extremes(base: M) -> st.SearchStrategy[M]:
    """The base with some of its fields at extremes of their types."""
    fields = list(_fields(base.DESCRIPTOR))
    if not fields:
        return st.just(base)
    choice = st.sampled_from(fields).flatmap(lambda at: st.tuples(st.just(at), st.sampled_from(_values(at[1]))))

    def changed(changes: list[tuple[tuple[tuple[FieldDescriptor, ...], FieldDescriptor], Any]]) -> M:
        message = type(base)()
        message.CopyFrom(base)
        for (path, field), value in changes:
            _put(message, path, field, value)
        return message

    return st.lists(choice, min_size=1, max_size=6).map(changed)


class _Unset:
    """The field is not there; of a repeated one, no element."""


class _Empty:
    """A message without a field; of a repeated one, two of them more."""


_UNSET: Final = _Unset()
_EMPTY: Final = _Empty()


def _values(field: FieldDescriptor) -> list[Any]:
    if field.message_type is not None:
        return [_UNSET, _EMPTY]
    assert field.type in _EXTREMES, f"{field.full_name} is of a type that has no extremes here"
    return [_UNSET, *_EXTREMES[field.type]]


def _fields(
    kind: Any, path: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[tuple[FieldDescriptor, ...], FieldDescriptor]]:
    for field in kind.fields:
        yield path, field
        if field.message_type is not None and not _is_map(field) and len(path) < _DEEPEST:
            yield from _fields(field.message_type, (*path, field))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _put(message: Any, path: tuple[FieldDescriptor, ...], field: FieldDescriptor, value: Any) -> None:
    for each in path:
        inner = getattr(message, each.name)
        message = (inner[0] if inner else inner.add()) if each.is_repeated else inner
        message.SetInParent()
    if value is _UNSET:
        message.ClearField(field.name)
    elif value is _EMPTY and _is_map(field):
        getattr(message, field.name).update({"": ""})
    elif value is _EMPTY and field.is_repeated:
        getattr(message, field.name).add()
        getattr(message, field.name).add()
    elif value is _EMPTY:
        message.ClearField(field.name)
        getattr(message, field.name).SetInParent()
    elif field.is_repeated:
        getattr(message, field.name).extend([value, value])
    else:
        setattr(message, field.name, value)
