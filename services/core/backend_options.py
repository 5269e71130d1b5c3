"""Options of backends: what values each may have, and which there are not. Pure."""

from dataclasses import dataclass

from services.core.formats.gojson import GoObject


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a backend."""

    name: str
    kind: str = "number"
    """`number`, `flag`, `text` or `secret`; `any`: the backend checks it; `windows`: has an effect on Windows only."""
    most: int = 0
    """Of a number."""

    def check(self, options: GoObject) -> None:
        """Raises InvalidInput for a value of another type, or out of range."""
        if self.kind == "number":
            options.number(self.name, most=self.most)
        elif self.kind == "flag":
            options.flag(self.name)
        elif self.kind == "text":
            options.text(self.name)
        elif self.kind == "secret":
            options.secret(self.name)


def number(name: str, most: int = 65535) -> Option:
    """A number up to `most`."""
    return Option(name, "number", most)


def each_of(kind: str, *names: str) -> tuple[Option, ...]:
    """Options of one kind."""
    return tuple(Option(name, kind) for name in names)


def unknown_options(backend: str, known: tuple[Option, ...], given: GoObject, page: str) -> list[str]:
    """A warning for each option that the backend does not have; `page` says where its options are told."""
    names = {option.name.casefold() for option in known} | {"type"}
    there = ", ".join(option.name for option in known if option.kind != "windows") or "none"
    return [
        f"{key} of Backend in the network configuration is no option of {backend} and has no effect: its options are "
        f"{there} ({page})"
        for key in given.names()
        if key.casefold() not in names
    ]
