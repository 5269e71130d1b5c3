"""What is wrong with a chain, in a few words each. Pure."""

from collections import Counter
from collections.abc import Hashable, Sequence

MISSING = "chain missing"
NOT_WANTED = "not wanted any more"
EXTRA = "rule extra"
OLD = "rules of an old flanneld"


def causes(wanted: Sequence[Hashable], found: Sequence[Hashable]) -> list[str]:
    """How the rules that were found differ from those that shall be there; empty: not at all."""
    if list(found) == list(wanted):
        return []
    want, have = Counter(wanted), Counter(found)
    sentences = [
        ("rule missing", any(have[key] < count for key, count in want.items())),
        ("rule duplicated", any(have[key] > count for key, count in want.items())),
        (EXTRA, any(key not in want for key in have)),
    ]
    return [sentence for sentence, holds in sentences if holds] or ["rules in another order"]
