"""Changes of protobuf messages that leave them messages: one field, at any depth, gets another value."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

Shaped: TypeAlias = Callable[[bytes], tuple[bytes, Any] | None]
"""What stands before the message in a case, and the message; None: the case has none."""

_NUMBERS: Final = (
    0,
    1,
    -1,
    24,
    512,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    253402300800,
)
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_MOST: Final = 8
"""Of a repeated field."""
_LONGEST: Final = 4096
"""Characters of a text: one change may make it 30 times as long, and the next change again."""


def changed(case: bytes, shaped: Shaped, dice: Random, words: Sequence[bytes]) -> bytes | None:
    """The case with some fields changed; None if it has no message."""
    found = shaped(case)
    if found is None:
        return None
    before, message = found
    for _ in range(1 << dice.randrange(3)):
        _change(message, dice, words)
    data: bytes = message.SerializeToString()
    return before + data


def _change(message: Any, dice: Random, words: Sequence[bytes]) -> None:
    if not message.DESCRIPTOR.fields:
        return
    # What is there already is more likely to be changed than what is not.
    fields = [*message.DESCRIPTOR.fields, *(3 * [field for field, _ in message.ListFields()])]
    field = dice.choice(fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        _change_map(getattr(message, field.name), key, value, dice, words)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, dice, words)
    elif field.message_type is not None:
        if message.HasField(field.name) and dice.random() < 0.1:
            message.ClearField(field.name)
        else:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _change(inner, dice, words)
    elif dice.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), dice, words))


def _change_list(found: Any, field: Any, dice: Random, words: Sequence[bytes]) -> None:
    if found and dice.random() < 0.2:
        del found[dice.randrange(len(found))]
    elif field.message_type is not None:
        if found and (len(found) >= _MOST or dice.random() < 0.7):
            _change(dice.choice(found), dice, words)
        else:
            _change(found.add(), dice, words)
    elif len(found) < _MOST:
        found.append(_value(field, "" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else 0, dice, words))


def _change_map(found: Any, key: Any, value: Any, dice: Random, words: Sequence[bytes]) -> None:
    if found and dice.random() < 0.2:
        del found[dice.choice(sorted(found))]
    elif len(found) < _MOST:
        name = dice.choice(sorted(found)) if found and dice.random() < 0.7 else _value(key, "", dice, words)
        found[name] = _value(value, found.get(name, ""), dice, words)


def _value(field: Any, before: Any, dice: Random, words: Sequence[bytes]) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return not before
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _text(before, dice, words)
    if field.cpp_type not in _RANGES:
        return float(dice.choice(_NUMBERS))
    least, most = _RANGES[field.cpp_type]
    return min(max(dice.choice((*_NUMBERS, int(before) + 1, int(before) ^ 1 << dice.randrange(31))), least), most)


def _text(before: str | bytes, dice: Random, words: Sequence[bytes]) -> str | bytes:
    word = dice.choice(words)
    if isinstance(before, bytes):
        return dice.choice((word, before + word, before[: dice.randrange(len(before) + 1)]))
    text, at = word.decode(errors="replace"), dice.randrange(len(before) + 1)
    longer = (before * 30)[:_LONGEST]
    return dice.choice((text, text, before[:at] + text + before[at:], before[:at], longer, before[:at] + "\0"))
