"""What the kernel has answered, kept so that it can be asked the same again for next to nothing."""

import ctypes
from collections.abc import Callable


class Buffer:
    """Memory as getsockopt wants it."""

    def __init__(self, content: bytearray) -> None:
        self.content = content
        self.address = (ctypes.c_char * len(content)).from_buffer(content)
        self.length = ctypes.byref(ctypes.c_uint32(len(content)))


class Evidence:
    """An answer. Asked by one thread at a time, for there is one place for the next one."""

    def __init__(self, ask: Callable[[], object], content: bytearray, mask: int, expected: int) -> None:
        self.question = ask, content, bytes(content)
        """The call, where its answer goes, and what that was. The call returns something if it fails."""
        self._mask, self._expected = mask, expected

    def is_other(self) -> bool:
        """Whether the kernel answers otherwise now, but for what the mask has zeros for.

        While that stays too, two memories are compared, and no numbers made of them.
        """
        ask, content, last = self.question
        if ask():
            return True
        if content == last:
            return False
        if int.from_bytes(content, "little") & self._mask != self._expected:
            return True
        self.question = ask, content, bytes(content)
        return False
