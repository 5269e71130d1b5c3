"""Cures: the commands that solve a problem, as codes with arguments whose types are known.

A service shows a cure as text. What `flannelette doctor --fix` carries out is never that text: it takes the code and
the arguments, checks them against `COMMANDS`, and makes the command itself. To declare one:
`cure=Cure(Command("link-up", name))`. A cure that is plain text is advice: it is shown, and nobody carries it out. A
new code is a row of `COMMANDS`, and a row of `services/ctl/commands/doctor.py::FACTS`, which says what must be true
on this host.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_interface, ip_network
from typing import Final

from flannelette.services.core.frozen import frozen

ArgumentType = Callable[[str], bool]
"""Checks whether a text is an argument of one type."""

_AND, _COMMENT = " && ", "  # "
"""What stands between the commands of a cure, and before what is said of them."""
_SYSCTLS: Final = re.compile(
    r"net\.ipv4\.ip_forward=1|net\.ipv6\.conf\.all\.forwarding=1"
    r"|net\.ipv[46]\.conf\.(?P<a>[^\s./]+)\.forwarding=1|net/ipv[46]/conf/(?P<b>[^\s/]+)/forwarding=1"
    r"|net\.ipv4\.conf\.(?P<c>[^\s./]+)\.rp_filter=2|net/ipv4/conf/(?P<d>[^\s/]+)/rp_filter=2"
)


def is_device(text: str) -> bool:
    """Whether the text is a device name that the kernel accepts and that no program takes for an option."""
    is_name = text.isascii() and text.isprintable() and not set(" /") & set(text)
    return is_name and 0 < len(text) < 16 and text not in (".", "..") and not text.startswith("-")


def is_setting(text: str) -> bool:
    """Whether the text is `KEY=VALUE` of a sysctl that the overlay needs: forwarding on, or a loose rp_filter."""
    matched = _SYSCTLS.fullmatch(text)
    return matched is not None and all(is_device(each) for each in matched.groups() if each is not None)


def is_interface_address(text: str) -> bool:
    """Whether the text is an address of an interface, with the prefix length: `10.5.27.1/24`."""
    try:
        return str(ip_interface(text)) == text
    except ValueError:
        return False


def is_prefix(text: str) -> bool:
    """Whether the text is an address range: `10.5.27.0/24`."""
    try:
        return str(ip_network(text)) == text
    except ValueError:
        return False


def is_address(text: str) -> bool:
    """Whether the text is one address, without a prefix length."""
    return "/" not in text and is_interface_address(f"{text}/{128 if ':' in text else 32}")


def is_offload(text: str) -> bool:
    """Whether the text is an offload feature of a device: who computes the checksums."""
    return text in ("tx", "tx-checksum-ip-generic")


@frozen
class CommandKind:
    """A command that may be carried out: its words, and the types of its arguments."""

    words: str
    """The words of the command, with `{0}`, `{1}`, ... for the arguments."""
    types: tuple[ArgumentType, ...]


COMMANDS: Final[Mapping[str, CommandKind]] = {
    "sysctl": CommandKind("sysctl -w {0}", (is_setting,)),
    "link-up": CommandKind("ip link set {0} up", (is_device,)),
    "bridge-address": CommandKind("ip addr add {0} dev {1}", (is_interface_address, is_device)),
    "bridge-route": CommandKind(
        "ip route add {0} dev {1} proto kernel scope link src {2}", (is_prefix, is_device, is_address)
    ),
    "bridge-route-v6": CommandKind("ip -6 route add {0} dev {1} proto kernel metric 256", (is_prefix, is_device)),
    "offload-off": CommandKind("ethtool -K {0} {1} off", (is_device, is_offload)),
}
"""Every command that `doctor --fix` knows, by its code."""


@frozen
class Command:
    """One command, by its code; `Command("link-up", "cni0")`."""

    code: str
    arguments: tuple[str, ...]

    def __init__(self, code: str, *arguments: str) -> None:
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "arguments", arguments)

    @property
    def is_valid(self) -> bool:
        """Whether the code is known, and each argument of its type: what a message says may be anything."""
        kind = COMMANDS.get(self.code)
        if kind is None or len(kind.types) != len(self.arguments):
            return False
        return all(fits(each) for fits, each in zip(kind.types, self.arguments, strict=True))

    @property
    def words(self) -> tuple[str, ...]:
        """The program and its arguments. Only for a command that is valid, or that this process has made."""
        return tuple(word.format(*self.arguments) for word in COMMANDS[self.code].words.split())

    def __str__(self) -> str:
        return " ".join(self.words)


class Cure(str):
    """The text of a cure, and the commands that it was made of."""

    __slots__ = ("commands",)
    commands: tuple[Command, ...]

    def __new__(cls, *commands: Command) -> "Cure":
        """Makes a cure of commands that are carried out one after the other."""
        made = super().__new__(cls, _AND.join(map(str, commands)))
        made.commands = commands
        return made


def written(commands: Iterable[str], keep: str = "") -> str:
    """Writes a cure for a shell, which reads what is said of it, `keep`, as a comment; empty: there is no command."""
    text = _AND.join(commands)
    return f"{text}{_COMMENT}{keep}" if text and keep else text


def lines_of(cure: str) -> frozenset[str]:
    """Returns the commands of a cure as they are typed; see `written`. Empty: there is none."""
    return frozenset(cure.partition(_COMMENT)[0].split(_AND) if cure else ())


def commands_of(cure: str) -> tuple[Command, ...]:
    """Returns the commands of a cure; empty: the cure is text alone, for people."""
    return cure.commands if isinstance(cure, Cure) else ()


def read_cure(text: str, commands: Iterable[Command]) -> str:
    """Reads a cure from a message: made of its commands if all of them are known, else the text, which is advice."""
    found = tuple(commands)
    return Cure(*found) if found and all(each.is_valid for each in found) else text
