"""masq's events: their kinds, and what there is to tell of rules, firewall, network and host."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.rules.inputs import RuleInputs
from flannelette.services.runtime.events import Event, Journal, Subject


class MasqEventKind(Enum):
    """The kind of an event, as EventKind in masq.proto, which says what each means."""

    SERVICE_STARTED = auto()
    READINESS = auto()
    LEASE_SERVICE = auto()
    NETWORK = auto()
    FIREWALL = auto()
    RULES = auto()
    REPAIR = auto()
    JUMP_LEFT = auto()
    FINDING = auto()
    FINDING_GONE = auto()
    FAILURE = auto()
    TEARDOWN = auto()
    RESYNC = auto()


def tell_repair(journal: Journal, state: ChainState, by: str) -> None:
    """Another program changed the chain, and it was put back."""
    what = f"repaired: {chain_name(state)}: {', '.join(state.causes)}"
    cause = f"changed by {by}" if by else "changed by another program"
    _tell_chain(journal, MasqEventKind.REPAIR, what, cause, state)


def tell_rules(journal: Journal, state: ChainState) -> None:
    """The rules of the chain were put in place or removed by our own decision."""
    if state.chain.rules:
        what = f"rules put in place: {chain_name(state)}, {len(state.all_rules)} rules"
    else:
        what = f"rules removed: {chain_name(state)}"
    _tell_chain(journal, MasqEventKind.RULES, what, ", ".join(state.causes), state)


def tell_jump_left(journal: Journal, state: ChainState, sentence: str) -> None:
    """The jump to the chain stays where another program has put it."""
    _tell_chain(journal, MasqEventKind.JUMP_LEFT, sentence, "another program", state)


class Observed:
    """What was told of the firewall, the network, the lease service and the host, so that only news is told."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._firewall = ""
        self._inputs = ""
        self._source: str | None = None
        self._problems: Mapping[tuple[str, str], str] = {}

    def firewall(self, name: str, reason: str) -> None:
        """The kind of firewall that has the rules, once it is known."""
        if name and name != self._firewall:
            what = f"firewall: {name}" + (f" instead of {self._firewall}" if self._firewall else "")
            self._journal.note(Event(MasqEventKind.FIREWALL, what, reason))
            self._firewall = name

    def inputs(self, inputs: RuleInputs, away: str, cached: str) -> None:
        """The network and the own subnets; why the lease service is away, and why cached rules are in force."""
        self._lease_service(away, cached)
        if inputs.network is None:
            return
        networks = ", ".join(str(row.cidr) for row in inputs.network.families)
        subnets = ", ".join(map(str, inputs.subnets)) or "none"
        if (words := f"network {networks}, own subnets {subnets}") != self._inputs:
            self._inputs = words
            self._journal.note(Event(MasqEventKind.NETWORK, words, "lease service"))

    def findings(self, problems: Mapping[tuple[str, str], str]) -> None:
        """The findings on the host now: their causes, by check and problem."""
        for check, problem in problems.keys() - self._problems.keys():
            self._journal.note(Event(MasqEventKind.FINDING, problem, problems[check, problem]))
        for _, problem in self._problems.keys() - problems.keys():
            self._journal.note(Event(MasqEventKind.FINDING_GONE, f"no longer: {problem}"))
        self._problems = problems

    def _lease_service(self, away: str, cached: str) -> None:
        source = "cached" if cached else "away" if away else "answers"
        if source == self._source:
            return
        is_first, self._source = self._source is None, source
        if not is_first:
            words = {
                "cached": "the cached rules are in force",
                "away": "the lease service is away; the last rules stay in force",
                "answers": "the lease service answers",
            }[source]
            self._journal.note(Event(MasqEventKind.LEASE_SERVICE, words, cached or away))


def chain_name(state: ChainState) -> str:
    """Names a chain with its family, such as `IPv4 FLANNEL-POSTRTG`."""
    return f"{state.chain.family} {state.chain.name}"


def tell_operator(journal: Journal, kind: MasqEventKind, commands: Sequence[str], *, dry_run: bool = False) -> None:
    """An operator had the rules compared or removed."""
    what = "rules torn down" if kind is MasqEventKind.TEARDOWN else "rules compared with the firewall"
    if not dry_run:
        journal.note(Event(kind, what, "an operator", objects=len(commands)))


def _tell_chain(journal: Journal, kind: MasqEventKind, what: str, cause: str, state: ChainState) -> None:
    subject = Subject(state.chain.name, str(state.chain.family))
    journal.note(Event(kind, what, cause, subjects=(subject,), subject_count=1, objects=len(state.commands)))
