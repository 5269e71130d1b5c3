"""A key or password that no log, status or plan shows."""


class Secret(bytes):
    """A private or pre-shared key, which no text shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(hidden)"

    __str__ = __repr__
