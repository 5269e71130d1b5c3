"""Two networks in one network namespace: each has its kernel objects, and what one does is nothing to the other."""

import re
import signal
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.hosts.namespaces import NamespaceMaker
from tests.services.networks import TwoNetworks, two_networks

BLUE, RED = (1, "10.5"), (2, "10.6")


@pytest.fixture
async def networks(make_netns: NamespaceMaker) -> AsyncIterator[TwoNetworks]:
    async with two_networks(make_netns) as made:
        yield made


async def test_networks_of_several_services_and_of_one_are_beside_each_other(networks: TwoNetworks) -> None:
    n1, n2 = networks.n1, networks.n2
    blue, red, both = (
        n1.serve("dataplane", "blue"),
        n1.serve("dataplane", "red"),
        n2.serve("dataplane", "blue", "red"),
    )
    masq_blue, masq_red, masq_both = (
        n1.serve("masq", "blue"),
        n1.serve("masq", "red"),
        n2.serve("masq", "blue", "red"),
    )
    for service, name in ((blue, ""), (red, "red"), (both, "blue"), (both, "red")):
        await service.until(lambda status: status.ready and status.peers.programmed == 1, name)
    for service, name in ((masq_blue, ""), (masq_red, ""), (masq_both, "blue"), (masq_both, "red")):
        await service.until(lambda status: status.rules and status.rules_present == status.rules, name)

    # Whose a call is, is told, and without a name it is refused where there are several.
    assert (await blue.call("ListPeers")).network == "blue"
    assert list((await both.call("GetStatus", networks_only=True)).networks) == ["blue", "red"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await both.call("GetStatus")
    assert refused.value.details() == "say which network (--network): this service has blue, red"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await masq_both.call("ListRules", "green")
    assert refused.value.details() == "there is no network 'green' here: this service has blue, red"
    shown = n2.flannelette("status")
    assert re.findall(r"^(blue|red) ", shown, re.M) == ["blue", "red"], shown
    for name, peer in (("blue", n1.address("blue")), ("red", n1.address("red"))):
        assert str(peer) in n2.flannelette("--network", name, "peers")
        assert str(n2.address(name)) in n1.flannelette("--network", name, "peers")
    for host in (n1, n2):
        assert f"{host.address('blue')}/32" in host.objects(*BLUE)
        assert f"{host.address('red')}/32" in host.objects(*RED)

    before = n1.objects(*BLUE), n1.objects(*RED)
    assert [text.count(f" {net}.") >= 9 for text, (_, net) in zip(before, (BLUE, RED), strict=True)] == [True, True]
    with networks.stream() as stream:
        async with stream:
            for service in (blue, masq_blue, both, masq_both):
                service.end(signal.SIGKILL)
                service.start()
            await blue.until(lambda status: status.ready and status.peers.programmed == 1)
            for name in ("blue", "red"):
                await both.until(lambda status: status.ready and status.peers.programmed == 1, name)
                await masq_both.until(lambda status: status.rules_present == status.rules > 0, name)
            await masq_blue.until(lambda status: status.rules_present == status.rules > 0)
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
