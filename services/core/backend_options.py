"""Options of backends: what values each may have, and which there are not. Pure."""

import json
import re
from dataclasses import dataclass, field
from typing import Final

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.formats.gojson import GoObject

CLOUDS: Final = ("aws-vpc", "gce", "ali-vpc", "tencent-vpc")
"""Backends whose routes are in a cloud's tables, and which nothing on a node has to carry."""
_WHERE: Final = "the network configuration"
_IPSEC_PAGE: Final = "docs/backends.md#ipsec"
_SHORTEST_PSK: Final = 96
_PROPOSAL: Final = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+){0,15}", re.ASCII)
ESP_PROPOSAL: Final = "aes128gcm16-sha256-prfsha256-ecp256"
"""flannel's default."""
_LONGEST_PROPOSAL: Final = 100


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a backend."""

    name: str
    kind: str = "number"
    """`number`, `flag`, `text` or `secret`; `any`: the backend checks it; `windows`: without effect here."""
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


def told_keys(options: GoObject, page: str) -> list[str]:
    """A warning about a cloud account's key in the network configuration, which each node of the overlay reads."""
    if not options.has("AccessKeySecret"):
        return []
    return [
        "the network configuration has the secret key of a cloud account, and every node reads it: give the instance "
        f"of flannelette-cloud a role, or its environment the key, and delete AccessKeySecret ({page})"
    ]


def route_table_ids(options: GoObject) -> tuple[str, ...]:
    """flannel's RouteTableID, a string or a list of them; empty: the tables are to be found. Raises InvalidInput."""
    text = options.compact("RouteTableID")
    value = json.loads(text) if text else None
    found = [value] if isinstance(value, str) else value or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput(
            "RouteTableID of Backend in the network configuration must be a string or a list of strings"
        )
    return tuple(dict.fromkeys(each for each in found if each))


@dataclass(frozen=True, slots=True)
class IpsecOptions:
    """flannel's options of the same names."""

    psk: bytes = field(repr=False)
    """The text of the option, as charon gets it."""
    encap: bool
    """ESP in UDP, also where no NAT is between two nodes."""
    proposal: str
    """Of ESP, in strongSwan's words."""


def ipsec_options(options: GoObject) -> IpsecOptions:
    """Raises InvalidInput, naming the option and never its secret."""
    psk = options.secret("PSK")
    if len(psk) < _SHORTEST_PSK:
        found = f"has {len(psk)}" if psk else "is missing"
        raise InvalidInput(
            f"PSK of Backend in {_WHERE} {found}: ipsec needs at least {_SHORTEST_PSK} characters, as `openssl rand "
            f"-hex 48` prints ({_IPSEC_PAGE})"
        )
    proposal = options.text("ESPProposal", ESP_PROPOSAL)
    if (
        not _PROPOSAL.fullmatch(proposal)
        or len(proposal) > _LONGEST_PROPOSAL
        or "null" in proposal.lower().split("-")
    ):
        raise InvalidInput(
            f"ESPProposal of Backend in {_WHERE} must be algorithms of strongSwan with - between them, of which one "
            f"encrypts, such as aes128gcm16-sha256-prfsha256-ecp256 ({_IPSEC_PAGE})"
        )
    return IpsecOptions(psk.encode(), options.flag("UDPEncap"), proposal)
