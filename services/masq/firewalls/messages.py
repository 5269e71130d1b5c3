"""What the firewall and its worker process say to each other: one JSON object a line.

The worker greets first, with a Hello; then every CheckRequest is answered with a CheckResponse. Instead of either
there may be a Failure.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

Form: TypeAlias = dict[str, Any]
"""A rule as `iptc.easy` decodes it, without its counters: `{"src": "10.5.0.0/16", "target": "ACCEPT"}`."""


@dataclass(frozen=True, slots=True)
class RuleForm:
    """One rule in two notations."""

    form: Form
    text: str
    """`-A CHAIN ...`, as iptables-save has it."""


@dataclass(frozen=True, slots=True)
class ChainForm:
    """One chain, the jump to it, and where that stands. No rules: neither shall exist."""

    table: str
    hook: str
    name: str
    jump: RuleForm
    rules: tuple[RuleForm, ...]
    comment: str = ""
    networks: tuple[str, ...] | None = None
    """See Chain."""
    moved: bool = False
    """See Chain."""

    @property
    def replaces_bare(self) -> bool:
        """Rules of an old flanneld in the hook shall go."""
        return bool(self.rules) or self.moved


@dataclass(frozen=True, slots=True)
class Found:
    """One rule that shall be there."""

    present: bool
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What was found of one chain, and done; see ChainState."""

    jump: Found
    rules: tuple[Found, ...]
    causes: tuple[str, ...]
    commands: tuple[str, ...]
    as_wanted: bool
    in_the_way: str = ""
    others: tuple[str, ...] = ()
    """Rules of other networks, as text."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The worker can work."""

    kind: ClassVar = "hello"
    fully_random: bool
    """MASQUERADE knows `--random-fully`."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Compare these chains, and with `repair` put right what differs."""

    kind: ClassVar = "check"
    chains: tuple[ChainForm, ...]
    repair: bool


@dataclass(frozen=True, slots=True)
class CheckResponse:
    """One report for each chain of the request, in its order."""

    kind: ClassVar = "checked"
    chains: tuple[ChainReport, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """It did not work; nothing was done."""

    kind: ClassVar = "failure"
    reason: str
    """What is wrong and what to do about it, one sentence or two."""


Message: TypeAlias = Hello | CheckRequest | CheckResponse | Failure


def encode(message: Message) -> bytes:
    """The message as one line."""
    return json.dumps({"kind": message.kind, **asdict(message)}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in a line. Raises ValueError: the other side is not of our version."""
    try:
        document = json.loads(line)
        match document.pop("kind"):
            case Hello.kind:
                return Hello(**document)
            case Failure.kind:
                return Failure(**document)
            case CheckRequest.kind:
                return CheckRequest(tuple(map(_chain_form, document["chains"])), document["repair"])
            case CheckResponse.kind:
                return CheckResponse(tuple(map(_chain_report, document["chains"])))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message: {line[:80]!r} ({error})") from None
    raise ValueError(f"not a message: {line[:80]!r}")


def _chain_form(document: dict[str, Any]) -> ChainForm:
    jump, rules = RuleForm(**document.pop("jump")), tuple(RuleForm(**rule) for rule in document.pop("rules"))
    networks = document.pop("networks")
    return ChainForm(jump=jump, rules=rules, networks=None if networks is None else tuple(networks), **document)


def _chain_report(document: dict[str, Any]) -> ChainReport:
    return ChainReport(
        jump=Found(**document["jump"]),
        rules=tuple(Found(**found) for found in document["rules"]),
        causes=tuple(document["causes"]),
        commands=tuple(document["commands"]),
        as_wanted=document["as_wanted"],
        in_the_way=document["in_the_way"],
        others=tuple(document["others"]),
    )
