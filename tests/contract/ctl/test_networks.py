"""Commands on a host whose networks have services of their own, beside the network without a name."""

import re
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ctl.fakes import FakeNode
from tests.ctl.process import run
from tests.ctl.sysdump import unpacked


def with_another(
    node: FakeNode, directory: Path, network: str, services: Sequence[str] = ("lease", "dataplane", "masq")
) -> FakeNode:
    """Services of a network with a name, at their sockets beside the node's; a test starts them."""
    directory.mkdir()
    for service in services:
        (node.directory / f"{service}-{network}.sock").symlink_to(directory / f"{service}.sock")
    return FakeNode(directory)


def left_by_a_killed(path: Path) -> None:
    """A socket on which no process listens."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


async def test_a_network_with_a_name_is_shown_beside_the_one_without(node: FakeNode, tmp_path: Path) -> None:
    red = with_another(node, tmp_path / "red", "red")
    await red.start()
    ran = await run(node.directory, "status")
    assert re.findall(r"^(\S+) +healthy", ran.out, re.M) == ["default", "red"], ran.out
    doctor = await run(node.directory, "doctor")
    assert re.findall(r"^--- network (\w+) ---", doctor.out, re.M) == ["default", "red"]
    doctor = await run(node.directory, "masq", "doctor")
    assert re.findall(r"^--- network (\w+) ---", doctor.out, re.M) == ["default", "red"], doctor.out
    peers = await run(node.directory, "peers", "--network", "default")
    assert "10.5.2.0/24" in peers.out
    assert "ListPeers" not in [method for method, _ in red.dataplane.replies.asked]
    every = (line.split()[:2] for line in (await run(node.directory, "peers")).out.splitlines())
    assert {on for on, subnet in every if subnet == "10.5.2.0/24"} == {"default", "red"}
    await red.stop()


async def test_a_service_whose_address_is_typed_is_the_only_one_asked(node: FakeNode, tmp_path: Path) -> None:
    red = with_another(node, tmp_path / "red", "red")
    await red.start()
    ran = await run(node.directory, "peers", "--dataplane", str(node.directory / "dataplane-red.sock"))
    assert (ran.err, ran.out.split()[0]) == ("", "SUBNET"), ran
    wrong = node.directory / "dataplane-green.sock"
    ran = await run(node.directory, "peers", "--dataplane", str(wrong))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"flannelette: there is no socket {wrong}: start flannelette-dataplane, or check --dataplane\n"
    await red.stop()


async def test_where_no_network_answers_a_table_has_no_heading(tmp_path: Path) -> None:
    for name in ("blue", "red"):
        left_by_a_killed(tmp_path / f"dataplane-{name}.sock")
    ran = await run(tmp_path, "peers")
    assert (ran.code, ran.out) == (2, "")
    assert [line.split(": ")[1] for line in ran.err.splitlines()] == ["blue", "red"], ran.err


async def test_a_network_whose_services_were_killed_is_missed_and_not_forgotten(
    node: FakeNode, tmp_path: Path
) -> None:
    for service in ("dataplane", "masq"):
        left_by_a_killed(node.directory / f"{service}-blue.sock")
    ran = await run(node.directory, "status")
    assert re.findall(r"^(\S+) +(?:healthy|no answer)", ran.out, re.M) == ["default", "blue"], ran.out
    assert ran.code != 0


@pytest.mark.parametrize("killed", [("dataplane", "masq"), ("lease", "dataplane", "masq")])
async def test_so_is_the_one_without_a_name_beside_one_that_is_well(
    node: FakeNode, tmp_path: Path, killed: tuple[str, ...]
) -> None:
    red = with_another(node, tmp_path / "red", "red")
    await red.start()
    await node.stop(*killed)
    for service in killed:
        left_by_a_killed(node.directory / f"{service}.sock")
    ran = await run(node.directory, "status")
    doctor = await run(node.directory, "doctor")
    await red.stop()
    assert re.findall(r"^(default|red) +(healthy|degraded|no answer)", ran.out, re.M) == [
        ("default", "degraded" if "lease" not in killed else "no answer"),
        ("red", "healthy"),
    ], ran.out
    assert re.findall(r"^--- network (\w+) ---", doctor.out, re.M) == ["default", "red"]
    assert 0 not in {ran.code, doctor.code}


async def test_one_that_was_stopped_is_not_missed_beside_others(node: FakeNode, tmp_path: Path) -> None:
    red = with_another(node, tmp_path / "red", "red")
    await red.start()
    await node.stop()
    ran = await run(node.directory, "status")
    await red.stop()
    assert ran.out.startswith("h1 is healthy\n"), ran.out


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
    for service in ("lease", "dataplane"):
        (directory / f"{service}-red.sock").unlink(missing_ok=True)
        (directory / f"{service}-red.sock").symlink_to(node.directory / f"{service}.sock")
        ran = await run(directory, "--network=green", "leases" if service == "lease" else "peers")
        said = f"there is no socket {directory}/{service}-green.sock: give --network "
        assert (ran.code, said in ran.err) == (2, True), ran.err
        assert f"or start flannelette-{service} --network=green" in ran.err


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


@pytest.mark.parametrize("of_red", [("lease", "dataplane", "masq"), ("lease",)])
async def test_an_archive_of_the_host_alone_has_them_by_their_sockets_and_asks_no_service(
    node: FakeNode, tmp_path: Path, of_red: tuple[str, ...]
) -> None:
    red = with_another(node, tmp_path / "red", "red", of_red)
    await red.start()
    ran = await run(node.directory, "sysdump", "--host-only", "-w", str(tmp_path / "host.tar.gz"))
    await red.stop()
    assert ran.code == 0, ran.err
    files = unpacked((tmp_path / "host.tar.gz").read_bytes())
    settings = {name.partition("/")[2] for name in files if "/settings-" in name}
    services = ("lease", "dataplane", "masq")
    assert settings == {f"{each}/settings-{name}.json" for each in ("default", "red") for name in services}
    for each in (node, red):
        assert [each.lease.replies.asked, each.dataplane.replies.asked, each.masq.replies.asked] == [[], [], []]


async def test_an_archive_of_services_that_hang_has_what_the_host_shows(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for service in ("lease", "dataplane", "masq"):
            hung = stack.enter_context(socket.socket(socket.AF_UNIX))
            hung.bind(str(tmp_path / f"{service}.sock"))
            hung.listen()
        ran = await run(tmp_path, "sysdump", "--timeout=4", "-w", str(tmp_path / "all.tar.gz"))
    assert ran.code == 0, ran.err
    files = unpacked((tmp_path / "all.tar.gz").read_bytes())
    shown = {name.partition("/")[2]: text for name, text in files.items()}
    for name in ("kernel/sysctls.txt", "settings-dataplane.json", "status.json", "doctor.json"):
        assert not shown[name].startswith("not collected"), shown[name]


async def test_a_socket_whose_name_holds_no_network_is_of_none(node: FakeNode, tmp_path: Path) -> None:
    for name in ("dataplane-...sock", "dataplane-Foo Bar.sock", "masq-$(id).sock"):
        (node.directory / name).symlink_to("dataplane.sock")
    assert (await run(node.directory, "status")).out.startswith("h1 is ")
    ran = await run(node.directory, "sysdump", "-w", str(tmp_path / "all.tar.gz"))
    assert ran.code == 0, ran.err
    names = unpacked((tmp_path / "all.tar.gz").read_bytes())
    assert {len(Path(name).parts) for name in names if name.endswith("/settings-lease.json")} == {2}
