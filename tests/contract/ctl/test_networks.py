"""Commands on a host whose networks have services of their own, beside the network without a name."""

import re
import socket
from pathlib import Path

from tests.ctl.fakes import FakeNode
from tests.ctl.process import run
from tests.ctl.sysdump import unpacked


def with_another(node: FakeNode, directory: Path, network: str) -> FakeNode:
    """Services of a network with a name, at their sockets beside the node's; a test starts them."""
    directory.mkdir()
    for service in ("lease", "dataplane", "masq"):
        (node.directory / f"{service}-{network}.sock").symlink_to(directory / f"{service}.sock")
    return FakeNode(directory)


async def test_a_network_with_a_name_is_shown_beside_the_one_without(node: FakeNode, tmp_path: Path) -> None:
    red = with_another(node, tmp_path / "red", "red")
    await red.start()
    ran = await run(node.directory, "status")
    assert re.findall(r"^(\S+) +healthy", ran.out, re.M) == ["default", "red"], ran.out
    doctor = await run(node.directory, "doctor")
    assert re.findall(r"^--- network (\w+) ---", doctor.out, re.M) == ["default", "red"]
    assert "10.5.2.0/24" in (await run(node.directory, "peers")).out
    assert "ListPeers" not in [method for method, _ in red.dataplane.replies.asked]
    await red.stop()


async def test_a_network_whose_services_were_killed_is_missed_and_not_forgotten(
    node: FakeNode, tmp_path: Path
) -> None:
    for service in ("dataplane", "masq"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(node.directory / f"{service}-blue.sock"))
    ran = await run(node.directory, "status")
    assert re.findall(r"^(\S+) +(?:healthy|no answer)", ran.out, re.M) == ["default", "blue"], ran.out
    assert ran.code != 0


async def test_a_command_about_no_network_where_each_has_its_services_says_which_there_are(
    node: FakeNode, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    for network in ("blue", "red"):
        (directory / f"lease-{network}.sock").symlink_to(node.directory / "lease.sock")
    ran = await run(directory, "leases")
    assert ran.code == 2
    assert (
        f"there is no socket {directory}/lease.sock: give --network blue or red, or start flannelette-lease"
        in ran.err
    )
    assert (await run(directory, "--network=blue", "leases")).code == 0


async def test_an_archive_has_a_directory_for_each_network(node: FakeNode, tmp_path: Path) -> None:
    red = with_another(node, tmp_path / "red", "red")
    await red.start()
    ran = await run(node.directory, "sysdump", "-w", str(tmp_path / "all.tar.gz"))
    await red.stop()
    assert ran.code == 0, ran.err
    files = unpacked((tmp_path / "all.tar.gz").read_bytes())
    names = [name.partition("/")[2] for name in files]
    for network in ("default", "red"):
        assert {f"{network}/status.json", f"{network}/peers.json", f"{network}/settings-lease.json"} <= set(names)
    assert names.count("kernel/links.txt") == 1
    peers = [text for name, text in files.items() if name.endswith("/peers.json")]
    assert [text.startswith("not collected") for text in peers] == [False, False]
