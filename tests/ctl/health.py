"""What the services of a node answer goes in; how the command line judges the node, and its words, come out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.connect.targets import Service, targets
from flannelette.services.ctl.node_health import Answers, assess, words_of
from flannelette.services.ctl.problems import Problem, headline, merged, problems
from tests.ctl import samples

MISSING: Final = CallFailed("there is no socket", missing=True)
KILLED: Final = CallFailed("nobody listens")


class Judged:
    """A node, as `status` and `doctor` see it."""

    def __init__(self, answers: Answers, directory: Path, lease: str | None) -> None:
        self._node = assess(answers, targets(directory, {"lease": lease}))
        self.exit_code = self._node.exit_code
        self.name = self._node.name
        self.problems: Sequence[Problem] = problems(self._node)
        self.headline = headline(self._node)

    def state(self, service: Service) -> str:
        """Whether the service is READY, UNREADY, AWAY or ELSEWHERE."""
        return self._node.services[service].state.name

    def remarks(self, service: Service) -> list[str]:
        return [words_of(each) for each in self._node.services[service].remarks]


def answered(
    *,
    lease: Any = None,
    dataplane: Any = None,
    masq: Any = None,
    address: str | None = None,
    directory: Path = Path("/run/flannelette"),
) -> Judged:
    """A node whose services answer like that, or not at all (MISSING, KILLED); None: the service is well.

    `address`: the one that is given for the lease service; `directory`: where the sockets are.
    """
    answers = Answers(
        lease or samples.lease_status(), dataplane or samples.dataplane_status(), masq or samples.masq_status()
    )
    return Judged(answers, directory, address)


def problem(service: Service, text: str, cure: str = "", **more: Any) -> Problem:
    """What a service says is wrong; `more` are its code and weight."""
    return Problem(service, text, cure, **more)


def shown(*nodes: tuple[str, Sequence[Problem]]) -> Sequence[Problem]:
    """What is shown of all that is wrong on these nodes: a cause once, with its consequences."""
    return merged(nodes)
