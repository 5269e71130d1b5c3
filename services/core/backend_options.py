"""An option of a backend: its one declaration, and how a value of the network configuration is read by it. Pure.

Whatever is said of options elsewhere (docs/configuration.md, docs/backends.md, the chart's schema) is made from the
declarations.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Final, Self

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Family
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.formats.text import word_list
from flannelette.services.core.tunnel import Tunnel

WHERE: Final = "the network configuration"
CLOUDS: Final = ("aws-vpc", "gce", "ali-vpc", "tencent-vpc")
"""Backends whose routes are in a cloud's tables, and which nothing on a node has to carry."""


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of an option."""

    name: str
    """Name in the network configuration, where case does not matter."""
    default: object
    """The type of the value, too: a number, a flag, a text, or a tuple of texts."""
    text: str
    """What it means, in Markdown."""
    since: str = ""
    """The release that has it first; empty: that of the backend."""
    least: int = 0
    most: int = 65535
    """Least and largest value of a number."""
    choices: tuple[str, ...] = ()
    """Values that a text may have; empty: any."""
    is_secret: bool = False
    """No error, log or answer shows it."""
    is_alike: bool = False
    """Nodes whose values differ cannot be peers."""
    otherwise: str = ""
    """What is in the place of the default, in words."""
    chart_value: str = ""
    """The key of `flannel` in the values of flannel's chart, which ours has too; empty: there is none."""
    convert: Callable[[Any], Any] | None = None
    """What makes the value out of the one that is written. Raises ValueError with the rest of a sentence."""

    def read(self, given: GoObject) -> Any:
        """The value that is written, else the default. Raises InvalidInput for one of another type or too large."""
        if self.is_secret:
            return given.secret(self.name)
        if isinstance(self.default, bool):
            return given.flag(self.name, self.default)
        if isinstance(self.default, int):
            return given.number(self.name, self.default, most=self.most)
        if isinstance(self.default, tuple):
            return json.loads(given.compact(self.name) or "null")
        return given.text(self.name, str(self.default))

    def meant(self, value: Any) -> Any:
        """What a written value means. Raises InvalidInput where it means nothing."""
        if self.choices and value not in self.choices:
            choices = word_list(self.choices, "or")
            raise InvalidInput(f"{self.name} {value!r} of Backend in {WHERE} does not exist: write {choices}")
        try:
            if isinstance(self.default, int) and value < self.least:
                raise ValueError(f"must be {self.least} to {self.most}, not {value}")
            return value if self.convert is None else self.convert(value)
        except ValueError as error:
            raise InvalidInput(f"{self.name} of Backend in {WHERE} {error}") from None


def option(name: str, default: Any, text: str, **more: Any) -> Any:
    """A field of a BackendOptions that is this Option."""
    declared = Option(name, default, text, **more)
    return field(default=default, repr=not declared.is_secret, metadata={"option": declared})


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What every service knows of a backend: a subclass has its options as fields, which are made by `option`."""

    since: ClassVar[str] = "0.2.0"
    """The release that has the backend first."""
    of_windows: ClassVar[tuple[Option, ...]] = ()
    """Options of flannel that have an effect on Windows alone."""
    carries_ipv6: ClassVar[bool] = True
    """Whether IPv6 is carried. If not, IPv6 of a network that enables both is left out, and a network of IPv6 alone
    refused."""
    needs_data: ClassVar[bool] = False
    """Whether a node on Kubernetes publishes a family only with data in it."""
    publishes_ipv6: ClassVar[bool] = False
    """Whether a node on Kubernetes publishes an IPv6 address."""
    shares_addresses: ClassVar[bool] = False
    """Several nodes, behind one NAT say, may publish one address: their keys tell them apart."""

    @classmethod
    def parse(cls, given: GoObject) -> Self:
        """The options as flannel reads them. Raises InvalidInput, naming the option."""
        declared = declared_options(cls)
        written = {name: each.read(given) for name, each in declared.items()}
        return cls(**{name: each.meant(written[name]) for name, each in declared.items()})

    @classmethod
    def of(cls, options: "BackendOptions") -> Self:
        """The same options in a subclass: in the backend that the dataplane has for them."""
        return cls(**{name: getattr(options, name) for name in declared_options(cls)})

    def check(self, families: tuple[Family, ...]) -> None:
        """Raises InvalidInput for options that no node could use together, or in these families."""

    def tunnel(self, suffix: str) -> Tunnel | None:
        """See NetworkConfig."""
        return None


def declared_options(backend: type[BackendOptions]) -> Mapping[str, Option]:
    """The options of a backend, by the name of their field."""
    declared: Sequence[Field[Any]] = [each for each in fields(backend) if each.metadata]
    return {each.name: each.metadata["option"] for each in declared}


def unknown_options(name: str, backend: type[BackendOptions], given: GoObject, page: str) -> list[str]:
    """A warning for each option that the backend does not have; `page` says where its options are told."""
    known = [each.name for each in declared_options(backend).values()]
    names = {each.casefold() for each in ("type", *known, *(each.name for each in backend.of_windows))}
    return [
        f"{key} of Backend in {WHERE} is no option of {name} and has no effect: its options are "
        f"{', '.join(known) or 'none'} ({page})"
        for key in given.names()
        if key.casefold() not in names
    ]


def told_keys(given: GoObject, page: str) -> list[str]:
    """A warning about a cloud account's key in the network configuration, which each node of the overlay reads."""
    if not given.has("AccessKeySecret"):
        return []
    return [
        f"{WHERE} has the secret key of a cloud account, and every node reads it: give the instance "
        f"of flannelette-cloud a role, or its environment the key, and delete AccessKeySecret ({page})"
    ]
