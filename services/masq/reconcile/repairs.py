"""Metrics and log lines of repairs, and the limit on moving a jump to our chain back to its position."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from flannelette.services.core.formats.text import word_list
from flannelette.services.masq.firewalls.firewall import JUMP_MISPLACED, ChainState
from flannelette.services.masq.reconcile.journal import tell_jump_left, tell_repair, tell_rules
from flannelette.services.masq.rules.model import Chain
from flannelette.services.runtime.events import Journal
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import Counter, Gauge, Histogram

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

_MOST_MOVES: Final = 3
_MOVES_SECONDS: Final = 60.0
_DO_NOT_STAY: Final = "do not stay as they should be: another program keeps changing them"
_LEFT: Final = (
    "the jump to {chain} is not in its place: another program has moved its own rule more than {most} times within a "
    "minute, and now the jump stays on the wrong side of that rule: {rule}"
)


class JumpBackoff:
    """Limits how often a jump is moved back, by chain: else two programs that both want to be last never end."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, str], deque[float]] = {}

    def note(self, chain: Chain, now: float) -> None:
        """Records that the jump to the chain was moved back. `now` is of a monotonic clock."""
        self._of(chain).append(now)

    def stays(self, chain: Chain, now: float) -> bool:
        """Whether the jump was moved back three times within the last minute, and now stays where it is."""
        times = self._of(chain)
        while times and times[0] <= now - _MOVES_SECONDS:
            times.popleft()
        return len(times) >= _MOST_MOVES

    def _of(self, chain: Chain) -> deque[float]:
        return self._times.setdefault((chain.family.version, chain.table), deque())


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


def commands_of(states: Sequence[ChainState]) -> list[str]:
    """The commands of all chains."""
    return [command for state in states for command in state.commands]


def what_is_wrong(states: Sequence[ChainState]) -> str:
    """A sentence about the chains that another program keeps changing; empty: there is none."""
    left = [state for state in states if state.causes == (JUMP_MISPLACED,)]
    sentences = [_LEFT.format(chain=_name(state), most=_MOST_MOVES, rule=state.overriding_rule) for state in left]
    others = [_name(state) for state in states if state not in left]
    return "; ".join([*sentences, *([f"{word_list(others, 'and')} {_DO_NOT_STAY}"] if others else [])])


def _name(state: ChainState) -> str:
    return f"{state.chain.family} {state.chain.name}"
