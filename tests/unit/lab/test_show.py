"""What the lab prints for a second terminal."""

from ipaddress import ip_address
from pathlib import Path

import pytest

from lab.cluster import Pod
from lab.show import Screen
from lab.topology import Host


@pytest.mark.parametrize(("network", "about"), [("", ""), ("red", " --network red")])
def test_commands_about_one_network_name_it_where_there_are_several(
    capsys: pytest.CaptureFixture[str], network: str, about: str
) -> None:
    Screen().how_to_look_inside(Path("/tmp/lab"), Pod(Host(2), ip_address("10.6.2.2"), network), "nsenter")  # noqa: S108
    commands = [line.strip().removeprefix("flannelette ") for line in capsys.readouterr().out.splitlines()]
    for command in (f"nodes{about}", "status --on h1", f"peers --on h1{about}", "connectivity"):
        assert command in commands
