"""What an argument of a command may be that `doctor --fix` carries out."""

import pytest

from flannelette.services.core import cure


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("10.5.27.1", {"address"}),
        ("fd00::1", {"address"}),
        ("10.5.27.1/24", {"interface address"}),
        ("fd00::1/64", {"interface address"}),
        ("10.5.27.0/24", {"interface address", "prefix"}),
        ("fd00::/64", {"interface address", "prefix"}),
        ("10.5.27.1/32", {"interface address", "prefix"}),
        ("010.5.27.1", set()),
        ("fd00:0::1", set()),
        ("10.5.27.1/24; reboot", set()),
        ("10.5.27", set()),
        ("", set()),
    ],
)
def test_an_address_is_written_as_the_kernel_writes_it_and_nothing_else(text: str, what: set[str]) -> None:
    kinds = {
        "address": cure.is_address,
        "interface address": cure.is_interface_address,
        "prefix": cure.is_prefix,
    }
    assert {kind for kind, is_one in kinds.items() if is_one(text)} == what
