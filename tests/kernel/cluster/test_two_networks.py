"""Two networks in one network namespace: each has its kernel objects, and what one does is nothing to the other."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import grpc
import pytest

from flannelette.services.runtime.networks import NodeNetwork
from tests.ctl.sysdump import unpacked
from tests.hosts.dataplane import environment
from tests.hosts.namespaces import NamespaceMaker
from tests.services.networks import Host, TwoNetworks, two_networks
from tests.waiting import eventually, eventually_exists, has, lacks

BLUE, RED = ("flannel.1", "10.5"), ("flannel.2", "10.6")
CNI = '{"name":"%s","cniVersion":"0.3.1","plugins":[{"type":"flannel"}]}'


@pytest.fixture
async def networks(make_netns: NamespaceMaker) -> AsyncIterator[TwoNetworks]:
    async with two_networks(make_netns) as made:
        yield made


async def test_two_networks_are_beside_each_other(networks: TwoNetworks) -> None:
    n1, n2 = networks.n1, networks.n2
    cni = (f"--cni-config-path={n2.directory}/cni.json", f"--cni-install-path={n2.directory}/10-flannel.conflist")
    for name in ("blue", "red"):
        (n2.directory / f"cni-{name}.json").write_text(CNI % name)
    names = ("blue", "red")
    (blue, red), there = (
        [host.serve("dataplane", name, flags=flags) for name in names] for host, flags in ((n1, ()), (n2, cni))
    )
    (masq_blue, masq_red), masqs_there = ([host.serve("masq", name) for name in names] for host in (n1, n2))
    for service in (*n1.services, *n2.services):
        await service.until_in_force()

    for name in ("blue", "red"):
        installed = n2.directory / f"10-flannel-{name}.conflist"
        await eventually_exists(installed)
        assert json.loads(installed.read_text())["name"] == name
    # Whose an answer is, is told, and a call about another network is refused.
    assert (await blue.call("ListPeers", "blue")).network == "blue"
    status = await red.call("GetStatus", networks_only=True)
    assert (status.network, [*status.networks]) == ("red", ["red"])
    for service, method in ((masq_red, "ListRules"), (red, "ListPeers")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.call(method, "blue")
        assert (refused.value.code(), refused.value.details()) == (
            grpc.StatusCode.NOT_FOUND,
            "there is no network 'blue' here: this process serves the network red; each network has a process of its "
            "own",
        )
    assert "network=red" in red.log.read_text()
    shown = n2.flannelette("status")
    assert re.findall(r"^(blue|red) ", shown, re.M) == ["blue", "red"], shown
    for host in (n1, n2):
        for name in ("blue", "red"):
            (host.directory / f"lease-{name}.sock").symlink_to(host.home / name / "lease.sock")
        for command in ("doctor", "connectivity", "topology"):
            sections = re.findall(r"^--- network (\w+) ---$([^-]*)", host.flannelette(command), re.M)
            assert [name for name, text in sections if text.strip()] == ["blue", "red"], (command, sections)
        listed = re.findall(r"^(\w+) .* 1/1 ", host.flannelette("top"), re.M)
        assert listed == ["blue", "red"]
    _, *drawn = n1.flannelette("topology").split("--- network ")
    assert [text.split(maxsplit=1)[0] for text in drawn if "n1 - n2" in text] == ["blue", "red"]
    decode, text = json.JSONDecoder().raw_decode, n2.flannelette("doctor", "-o", "json")
    blue_said, end = decode(text)
    red_said, _ = decode(text[end:].lstrip())
    assert [blue_said["network"], red_said["network"]] == ["blue", "red"]
    assert "this output is about one network: give --network blue or red" in n2.flannelette("topology", "-o", "svg")
    assert n2.flannelette("--network", "red", "topology", "-o", "svg").startswith("<svg ")
    for name, peer in (("blue", n1.address("blue")), ("red", n1.address("red"))):
        assert str(peer) in n2.flannelette("--network", name, "peers")
        assert str(n2.address(name)) in n1.flannelette("--network", name, "peers")
    for host in (n1, n2):
        assert f"{host.address('blue')}/32" in host.objects(*BLUE)
        assert f"{host.address('red')}/32" in host.objects(*RED)

        archive = host.directory / "all.tar.gz"
        assert "red/peers.json" in host.flannelette("sysdump", "-w", str(archive), "-o", "json")
        files = unpacked(archive.read_bytes())
        for _, net in (BLUE, RED):
            assert f"FLANNEL_NETWORK={net}." in "".join(files[each] for each in files if "/subnet.env" in each)

    before = n1.objects(*BLUE), n1.objects(*RED)
    assert [text.count(f" {net}.") >= 9 for text, (_, net) in zip(before, (BLUE, RED), strict=True)] == [True, True]
    with networks.stream() as stream:
        async with stream:
            killed = (blue, masq_blue, *there, *masqs_there)
            for service in killed:
                service.end(signal.SIGKILL)
                service.start()
            for service in killed:
                await service.until_in_force()
    assert stream.sent > 0
    assert stream.lost == []
    assert (n1.objects(*BLUE), n1.objects(*RED)) == before

    await blue.call("TeardownKernel")
    await masq_blue.call("TeardownRules")
    assert n1.objects(*RED) == before[1]
    assert "flannel.1" not in n1.namespace.ip("link")
    assert [line for line in n1.rules() if " 10.5." in line] == []
    for service in (blue, masq_blue):
        assert service.end(signal.SIGTERM) == 0
    await masq_red.call("ResyncRules")
    status = await masq_red.until(lambda status: status.rules_present == status.rules)
    assert status.repairs == 0, masq_red.log.read_text()
    assert n1.objects(*RED) == before[1]


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        (
            '{"Network":"10.6.128.0/17","Backend":{"Type":"host-gw"}}',
            "range 10.6.128.0/17 of network green and range 10.6.0.0/16 of network red, which is on this host too, "
            "cannot be there at once: change one of them",
        ),
        (
            '{"Network":"10.7.0.0/16","Backend":{"Type":"vxlan","VNI":2}}',
            "device flannel.2 (VNI 2 and port 8472) of network green and device flannel.2 (VNI 2 and port 8472) of "
            "network red, which is on this host too, cannot be there at once: change one of them",
        ),
    ],
    ids=["range", "VNI"],
)
async def test_what_two_networks_cannot_both_have_is_refused_and_names_both(
    networks: TwoNetworks, configuration: str, reason: str
) -> None:
    host = networks.n1
    red, masq = host.serve("dataplane", "red"), host.serve("masq", "red")
    await red.until(lambda status: status.ready)
    await masq.until(lambda status: status.rules and status.rules_present == status.rules)
    before = host.objects(*RED)
    networks.add("green", configuration)
    green = host.serve("dataplane", "green")
    assert reason in (await green.until(lambda status: reason in status.reasons)).reasons
    if "range" in reason:
        of_green = host.serve("masq", "green")
        await of_green.until(lambda status: any(reason in each for each in status.reasons))
    assert host.objects(*RED) == before
    red.end(signal.SIGTERM)
    if "range" in reason:  # nothing of red is in its way any more but the routes, which stay
        await green.until(lambda status: status.ready)
    else:
        known = "flannel.2 (VNI 2 and port 8472) has 10.6."
        await green.until(lambda status: any(each.startswith(known) for each in status.reasons))
    assert host.objects(*RED) == before


async def test_what_killed_services_have_left_goes_by_network_and_nothing_else(networks: TwoNetworks) -> None:
    host = networks.n1
    host.namespace.ip(*"link add other type vxlan id 77 dstport 4789 dev eth0".split())
    host.namespace.run(*"nft add table ip flannelette-theirs".split())
    before = everything(host)
    for name in ("blue", "red"):
        host.serve("dataplane", name)
        networks.n2.serve("dataplane", name)
    host.serve("masq", "red")
    host.serve("masq", "blue", flags=["--firewall=nftables"])
    for service in host.services:
        await service.until_in_force()
    state = host.directory / "state"
    await eventually(lambda: [*state.glob("dataplane-*.state"), *state.glob("masq-*.state")], has(4))
    running = teardown(host, "--yes")
    assert running.count("another dataplane-") == running.count("another masq-") == 2, running
    for service in host.services:
        service.end()
    red = host.objects(*RED)
    assert "table ip flannelette-blue" in host.namespace.run("nft", "list", "tables")
    planned = teardown(host, "--dry-run")
    assert re.findall(r"^# (\S+): \d+ commands? to run$", planned, re.M) == [
        "dataplane-blue",
        "masq-blue",
        "dataplane-red",
        "masq-red",
    ], planned
    assert host.objects(*RED) == red
    done = teardown(host, "--network=blue", "--yes")
    assert "dataplane-red" not in done
    assert host.objects(*RED) == red
    assert "flannel.1:" not in host.namespace.ip("link")
    assert "flannelette-blue" not in host.namespace.run("nft", "list", "tables")
    rest = teardown(host, "--yes")
    assert "# dataplane-blue: nothing to do" in rest
    assert everything(host) == before


async def test_the_mark_of_a_network_says_what_it_has_left_and_is_not_anothers(networks: TwoNetworks) -> None:
    """Each network's routes have its number: not that of the one without a name, nor that of one that still runs."""
    host, mark = networks.n1, NodeNetwork("red").route_protocol
    red = host.serve("dataplane", "red")
    networks.n2.serve("dataplane", "red")
    await red.until(lambda status: status.ready and status.peers.programmed == 1)
    before = host.objects(*RED)
    twin = next(name for each in range(1000) if NodeNetwork(name := f"twin{each}").route_protocol == mark)
    refused = teardown(host, "dataplane", f"--network={twin}", "--yes")
    assert f"the routes of network red, which runs here, have the mark {mark} too" in refused
    assert host.objects(*RED) == before
    red.end()
    assert f"proto {mark}" in teardown(host, "--network=red", "--dry-run", how="--keep-foreign")
    (host.directory / "subnet-red.env").unlink()  # else a device is known by its address, too
    other = {"FLANNELD_ROUTE_PROTOCOL": "99"}
    assert "# dataplane-red: nothing to do" in teardown(host, "dataplane", "--network=red", "--yes", **other)
    assert host.objects(*RED) == before


async def test_a_device_that_a_running_network_has_is_left_over_by_no_other(networks: TwoNetworks) -> None:
    """Although a route of the other leads there, as where the one has got what the other had before an upgrade."""
    host, mark = networks.n1, NodeNetwork("blue").route_protocol
    red = host.serve("dataplane", "red")
    networks.n2.serve("dataplane", "red")
    await red.until(lambda status: status.ready and status.peers.programmed == 1)
    before, left = host.objects(*RED), f"10.5.99.0/24 via 10.6.99.0 dev flannel.2 onlink proto {mark}"
    host.namespace.ip("route", "add", *left.split())
    assert left.partition(" dev")[0] in teardown(host, "dataplane", "--network=blue", "--yes")
    assert host.objects(*RED) == before
    host.namespace.ip("route", "add", *left.split())
    blue = host.serve("dataplane", "blue")
    await blue.until(lambda status: status.ready)
    await eventually(lambda: host.namespace.ip("route"), lacks("10.5.99.0"))
    await red.until(lambda status: status.ready and status.peers.programmed == 1)
    assert host.objects(*RED) == before


def teardown(host: Host, *words: str, how: str = "--offline", **variables: str) -> str:
    """What such a `teardown` prints there."""
    files = (f"FLANNELD_SUBNET_FILE={host.directory}/subnet.env", f"FLANNELD_STATE_DIR={host.directory}/state")
    program = (sys.executable, "-m", "flannelette.services.ctl.main", "teardown", how, *words)
    command = host.namespace.command("env", *files, *(f"{name}={text}" for name, text in variables.items()), *program)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def everything(host: Host) -> list[str]:
    """Of its kernel, but for the tables that iptables makes when it is asked."""
    looks = ("ip -br link", "ip route show table all", "ip neigh show nud permanent", "nft list tables")
    found = [line.strip() for look in looks for line in host.namespace.run(*look.split()).splitlines()]
    return [line for line in found if line not in ("table ip nat", "table ip filter")] + host.rules()
