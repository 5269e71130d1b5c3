"""Records: values that are quick to make."""

from flannelette.services.core.frozen import frozen


@frozen
class Point:
    x: int
    y: int = 0


def test_a_record_is_what_its_fields_are() -> None:
    assert Point(1) == Point(x=1, y=0) != Point(1, 2)
    assert len({Point(1), Point(1, 0), Point(2)}) == 2
    assert repr(Point(1)) == "Point(x=1, y=0)"


def test_a_record_has_its_fields_and_nothing_else() -> None:
    assert not hasattr(Point(1), "__dict__")
