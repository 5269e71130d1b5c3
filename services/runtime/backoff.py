"""Pauses between attempts, with jitter: what fails for many at once is not tried again by all of them at once."""

import random


def jittered(longest: float, share: float = 0.5) -> float:
    """A random number of seconds up to `longest`, of which no more than this share is missing."""
    return random.uniform(longest * (1 - share), longest)  # noqa: S311 - jitter


class Backoff:
    """Pauses of a loop, in seconds: the first is at most `first`, each next one twice as long, none above `most`.

    Without values, those for a person who looks on. `share` is that of `jittered`.
    """

    def __init__(self, first: float = 0.1, most: float = 2.0, share: float = 0.5) -> None:
        self.upcoming = first
        """The most that the next pause takes."""
        self._first, self._most, self._share = first, most, share

    def next(self, most: float | None = None) -> float:
        """The pause before the next attempt; this one is no longer than `most`, if that is given."""
        longest = self.upcoming if most is None else min(self.upcoming, most)
        self.upcoming = min(2 * longest, self._most)
        return jittered(longest, self._share)

    def reset(self) -> None:
        """Makes the next pause the first one again, as after a success."""
        self.upcoming = self._first
