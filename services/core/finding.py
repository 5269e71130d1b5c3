"""A finding: a problem that any service may have, such as of its certificates, its clock or its store."""

from dataclasses import dataclass, replace
from typing import Final

MOST_REPORTED: Final = 8
"""Findings of a node that a lease service keeps."""
LONGEST_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class Finding:
    """Symptom, cause, cure and evidence."""

    check: str
    """A word: the row of the table in docs/operations.md."""
    problem: str
    """What does not work, or will not, one sentence."""
    cause: str = ""
    cure: str = ""
    """The exact command; empty: none, or the cause says what to do. One that `doctor --fix` may carry out is a
    `Cure(Command(CODE, ARGUMENTS))`; plain text is shown and never carried out."""
    evidence: str = ""
    is_broken: bool = False
    """Packets are lost for certain."""
    is_soon: bool = False
    """Nothing is lost yet, and will be if nothing is done."""

    @property
    def weight(self) -> int:
        """The gravest is the smallest."""
        return 0 if self.is_broken else 1 if self.is_soon else 2

    def bounded(self) -> "Finding":
        """Returns the finding with texts of at most LONGEST_TEXT, because a hostile node may send longer ones."""
        return replace(
            self,
            check=self.check[:LONGEST_TEXT],
            problem=self.problem[:LONGEST_TEXT],
            cause=self.cause[:LONGEST_TEXT],
            cure=self.cure[:LONGEST_TEXT],
            evidence=self.evidence[:LONGEST_TEXT],
        )
