"""The lines of `subnet.env`, as any shell that reads it would take them."""


def read_lines(text: str) -> dict[str, str]:
    """The values by name, the last one where there are several; lines that are no assignment are passed over.

    Quotes around a value do not matter.
    """
    pairs = (line.strip().partition("=")[::2] for line in text.splitlines() if "=" in line)
    return {name: value.strip().strip("'\"") for name, value in pairs}
