"""What masq tells of rules, firewall, network and host: events, log lines and metrics."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from flannelette.services.core.formats.text import word_list
from flannelette.services.masq.firewalls.firewall import JUMP_MISPLACED, ChainState
from flannelette.services.masq.reconcile.inputs import RuleInputs
from flannelette.services.masq.rules import Chain
from flannelette.services.runtime.events import Event, Journal, Subject
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import Counter, Gauge, Histogram


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


log = get_logger()

REPAIRS: Final = Counter(
    "flannelette_masq_repairs",
    "Repairs of changes by other programs, with the process where the kernel reports it.",
    ["cause", "by"],
)
MOVES_LEFT: Final = Gauge(
    "flannelette_masq_jumps_left_behind",
    "Jumps that another program keeps moving, and that masq no longer moves back.",
)
RULES_WANTED: Final = Gauge("flannelette_masq_rules_wanted", "Rules that shall be in the firewall.")
RULES_PRESENT: Final = Gauge("flannelette_masq_rules_present", "Rules of those that were there at the last look.")
CHECK_SECONDS: Final = Histogram(
    "flannelette_masq_check_seconds",
    "Time of a full comparison, with its repair if there was one.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
)
FAILURES: Final = Counter("flannelette_masq_check_failures", "Comparisons that could not be made.")

MOST_MOVES: Final = 3
"""Moves within a minute of a jump to its place; then it stays where another program puts it."""
_DO_NOT_STAY: Final = "do not stay as they should be: another program keeps changing them"
_LEFT: Final = (
    "the jump to {chain} is not in its place: another program has moved its own rule more than {most} times within a "
    "minute, and now the jump stays on the wrong side of that rule: {rule}"
)


class RepairLog:
    """Logs what was done to each chain, once, and counts the repairs of changes by other programs."""

    def __init__(self, journal: Journal) -> None:
        self.repairs = 0
        self._journal = journal
        self._left: frozenset[Chain] = frozenset()
        """Chains whose jump stays where another program has put it."""
        self._right: frozenset[Chain] = frozenset()
        """Chains that were as desired after the last check: a difference was made by another program."""

    def forget(self) -> None:
        """Forgets the chains, because an operator removes the rules."""
        self._right = frozenset()

    def add(self, states: Sequence[ChainState], changed_by: Sequence[str]) -> None:
        """The states after a repairing check."""
        for state in states:
            where = {"family": str(state.chain.family), "chain": state.chain.name}
            if state.chain in self._right:
                by = ", ".join(changed_by)
                blamed = {**where, "by": by} if by else where
                if state.commands:
                    self.repairs += 1
                    log.warning("another program changed our rules; they are repaired", causes=state.causes, **blamed)
                    tell_repair(self._journal, state, by)
                for cause in state.causes:
                    REPAIRS.labels(cause, by).inc()
            elif state.commands and state.chain.rules:
                log.info("rules put in place", rules=len(state.all_rules), found=state.causes, **where)
                tell_rules(self._journal, state)
            elif state.commands:
                log.info("rules removed", **where)
                tell_rules(self._journal, state)
            elif state.chain.rules and state.as_wanted:
                log.info("the rules were in place already", rules=len(state.all_rules), **where)
        self._right = frozenset(state.chain for state in states if state.as_wanted)

    def add_left(self, left: Mapping[Chain, ChainState]) -> None:
        """The chains whose jumps are not moved back now."""
        for chain in left.keys() - self._left:
            sentence = what_is_wrong([left[chain]])
            log.warning(sentence)
            tell_jump_left(self._journal, left[chain], sentence)
        self._left = frozenset(left)
        MOVES_LEFT.set(len(left))


def count_rules(states: Sequence[ChainState]) -> None:
    """Sets the metrics of the rules."""
    rules = [rule for state in states for rule in state.all_rules]
    RULES_WANTED.set(len(rules))
    RULES_PRESENT.set(sum(rule.present for rule in rules))


def what_is_wrong(states: Sequence[ChainState]) -> str:
    """A sentence about the chains that another program keeps changing; empty: there is none."""
    left = [state for state in states if state.causes == (JUMP_MISPLACED,)]
    sentences = [_LEFT.format(chain=chain_name(state), most=MOST_MOVES, rule=state.overriding_rule) for state in left]
    others = [chain_name(state) for state in states if state not in left]
    return "; ".join([*sentences, *([f"{word_list(others, 'and')} {_DO_NOT_STAY}"] if others else [])])
