"""How long the lab waits, and for what."""

import pytest

from lab.cluster import patience_seconds
from lab.options import parse
from lab.vm import times_as_long


def test_hosts_of_several_clusters_have_as_long_as_those_of_one() -> None:
    """All of them start beside each other on one machine."""
    assert patience_seconds(parse(["CLUSTERS=2", "NODES=3"], {})) == patience_seconds(parse(["NODES=6"], {}))


@pytest.mark.parametrize(
    ("load", "processors", "times"), [(0.0, 2, 1), (1.0, 2, 1), (4.0, 2, 2.5), (4.0, 8, 1), (99.0, 2, 8)]
)
def test_a_guest_takes_as_much_longer_as_other_processes_want_the_processors(
    load: float, processors: int, times: float
) -> None:
    assert times_as_long(load, processors) == times
