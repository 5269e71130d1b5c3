"""The kernel's answers to doctor's questions: what may lie in them that is not text."""

import struct

from flannelette.services.core.family import IPV4
from flannelette.services.dataplane.diagnose.inspector import rule_in
from tests.examples.netlink_dumps import attribute, message

_IIFNAME = 3


def test_a_rule_for_an_interface_whose_name_is_no_utf_8_is_read() -> None:
    """The kernel takes any bytes but a blank, a slash and a colon."""
    told = message(32, struct.pack("=BBBBB2xBI", 2, 0, 0, 0, 254, 1, 0) + attribute(_IIFNAME, b"eth\xff\0"))
    assert rule_in(IPV4, told).iif == "eth\ufffd"
