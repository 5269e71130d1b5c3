"""The condition of a check whose texts are not rows of the registry yet: `Finding(check, problem, cause, ...)`."""

from flannelette.services.core.conditions import BROKEN, SOON, WARNING, Condition


class Finding(Condition):
    """A condition with its own texts."""

    __slots__ = ()

    def __init__(
        self,
        check: str,
        problem: str,
        cause: str = "",
        cure: str = "",
        evidence: str = "",
        is_broken: bool = False,
        is_soon: bool = False,
    ) -> None:
        weight = BROKEN if is_broken else SOON if is_soon else WARNING
        super().__init__("", cure=cure, evidence=evidence, weight=weight, told=(check, problem, cause))
