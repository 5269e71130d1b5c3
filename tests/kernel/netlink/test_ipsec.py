"""xfrm policies on a real kernel: what was put is dumped, drift is a difference and is told, others' stay."""

import asyncio
from collections.abc import Iterator

import pytest

from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject
from flannelette.services.dataplane.netlink.objects import (
    ALLOW_PRIORITY,
    BLOCK,
    BLOCK_PRIORITY,
    DIR_FWD,
    DIR_IN,
    DIR_OUT,
    REQID,
    TUNNEL_PRIORITY,
    KernelObject,
    Plan,
    XfrmPolicy,
    plan,
)
from flannelette.services.dataplane.netlink.uapi import AF_INET
from flannelette.services.dataplane.netlink.xfrm import PolicyEvents, PolicySocket
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.tools import lacking

OWN, THEIRS, ALL = bytes((10, 5, 27, 0)), bytes((10, 5, 53, 0)), bytes((10, 5, 0, 0))
HERE, THERE = bytes((10, 99, 0, 11)), bytes((10, 99, 0, 12))
MARKS = {"reqid": REQID, "priority": TUNNEL_PRIORITY}
AWAY = XfrmPolicy(
    DIR_OUT, OWN, 24, THEIRS, 24, tunnel_src=HERE, tunnel_dst=THERE, reqid=REQID, priority=TUNNEL_PRIORITY
)
BACK = XfrmPolicy(
    DIR_IN, THEIRS, 24, OWN, 24, tunnel_src=THERE, tunnel_dst=HERE, reqid=REQID, priority=TUNNEL_PRIORITY
)
DROP = XfrmPolicy(DIR_OUT, OWN, 24, ALL, 16, BLOCK, BLOCK_PRIORITY)
PASS = XfrmPolicy(DIR_OUT, OWN, 24, OWN, 24, priority=ALLOW_PRIORITY)
WANTED = frozenset[KernelObject]([AWAY, BACK, BACK._replace(direction=DIR_FWD, is_optional=True), DROP, PASS])
NOTHING = frozenset[KernelObject]()


@pytest.fixture
def policies(netns: NetworkNamespace) -> Iterator[PolicySocket]:
    with netns.inside():
        made = PolicySocket()
    with made:
        if not made.port:
            lacking("this kernel has no xfrm: modprobe xfrm_user, or `make vm-test`")
        yield made


async def actual(policies: PolicySocket) -> frozenset[KernelObject]:
    return (await policies.contents(())).on_devices


async def told_by(events: PolicyEvents) -> list[Change]:
    async with asyncio.timeout(PATIENCE):
        while True:
            if found := events.waiting():
                return found
            await asyncio.sleep(0.01)


async def test_what_was_put_is_dumped_and_drift_is_a_difference(
    netns: NetworkNamespace, policies: PolicySocket
) -> None:
    assert await policies.apply(plan(await actual(policies), WANTED)) == {}
    assert await actual(policies) == WANTED
    shown = netns.ip("xfrm", "policy", "list", "dir", "out")
    assert "src 10.5.27.0/24 dst 10.5.53.0/24" in shown
    assert "dir out priority 26220" in shown
    assert "proto esp reqid 11" in shown
    assert "action block priority 1718378863" in shown
    assert "level use" in netns.ip("xfrm", "policy", "list", "dir", "fwd")
    for damage, lost in (
        ("xfrm policy del src 10.5.27.0/24 dst 10.5.53.0/24 dir out", {AWAY}),
        ("xfrm policy update src 10.5.27.0/24 dst 10.5.53.0/24 dir out priority 7", {AWAY}),
        ("xfrm policy update src 10.5.27.0/24 dst 10.5.0.0/16 dir out action allow", {DROP}),
        ("xfrm policy flush", set(WANTED)),
    ):
        netns.ip(*damage.split())
        todo = plan(await actual(policies), WANTED)
        assert (set(todo.put), set(todo.delete)) == (lost, set()), damage
        assert await policies.apply(todo) == {}
        assert await actual(policies) == WANTED, damage
    assert await policies.apply(Plan(NOTHING, WANTED)) == {}
    assert await policies.apply(Plan(NOTHING, WANTED)) == {}, "what is gone is deleted"
    assert netns.ip("xfrm", "policy", "list") == ""


async def test_policies_live_longer_than_their_first_second(policies: PolicySocket) -> None:
    await policies.apply(Plan(WANTED, NOTHING))
    await asyncio.sleep(2.5)  # the kernel's timer of a policy, which ends those with a limit of time
    assert await actual(policies) == WANTED


async def test_flannels_are_told_and_another_programs_stay(netns: NetworkNamespace, policies: PolicySocket) -> None:
    template = "tmpl src 10.99.0.11 dst 10.99.0.12 proto esp mode tunnel reqid"
    netns.ip(*f"xfrm policy add src 10.5.27.0/24 dst 10.5.53.0/24 dir out {template} 11".split())
    netns.ip(*f"xfrm policy add src 10.6.0.0/24 dst 10.7.0.0/24 dir out priority 5 {template} 12".split())
    netns.ip(*"xfrm policy add src 10.8.0.0/24 dst 10.9.0.0/24 dir out action block".split())
    assert await actual(policies) == {AWAY._replace(priority=0)}
    assert await policies.apply(plan(await actual(policies), WANTED)) == {}
    assert await actual(policies) == WANTED
    others = netns.ip("xfrm", "policy", "list")
    assert "10.6.0.0/24" in others
    assert "10.8.0.0/24" in others


async def test_what_others_change_is_told_and_our_own_changes_are_not(
    netns: NetworkNamespace, policies: PolicySocket
) -> None:
    with netns.inside():
        made = PolicyEvents(policies.port)
    with made as events:
        await policies.apply(Plan(WANTED, NOTHING))
        assert events.waiting() == []
        for damage, told in (
            (
                "xfrm policy del src 10.5.53.0/24 dst 10.5.27.0/24 dir fwd",
                Change(ChangedObject.POLICY, True, AF_INET, dst=THEIRS, length=24),
            ),
            (
                "xfrm policy update src 10.5.27.0/24 dst 10.5.53.0/24 dir out priority 7",
                Change(ChangedObject.POLICY, False, AF_INET, dst=THEIRS, length=24),
            ),
            ("xfrm policy flush", Change(ChangedObject.POLICY, True)),
        ):
            netns.ip(*damage.split())
            (change,) = await told_by(events)
            assert (change.gone, change.family, change.dst, change.length) == (
                told.gone,
                told.family,
                told.dst,
                told.length,
            )


_POLICY = "xfrm policy add dir out src 10.5.27.0/24 dst 10.5.53.0/24 tmpl src 10.99.0.11 dst 10.99.0.12 proto esp"


@pytest.mark.parametrize(
    ("template", "state", "lacks_state"),
    [
        ("mode tunnel reqid 77", "", True),
        ("mode tunnel reqid 77", "reqid 77", False),
        ("mode tunnel reqid 77", "reqid 78", True),
        ("mode tunnel", "reqid 78", False),
        ("mode transport reqid 77 level use", "", False),
        (f"mode tunnel reqid {REQID}", "", False),
    ],
)
async def test_a_policy_of_another_program_lacks_its_state_unless_there_is_one(
    netns: NetworkNamespace, template: str, state: str, lacks_state: bool
) -> None:
    """One of ours is the business of others: see the tunnels of IPsec."""
    netns.ip(*f"{_POLICY} {template}".split())
    if state:
        made = f"xfrm state allocspi src 10.99.0.11 dst 10.99.0.12 proto esp mode tunnel {state}"
        netns.ip(*made.split())  # one without keys, which not every kernel can use
    with netns.inside(), Inspector() as inspector:
        (policy,) = await inspector.policies()
    assert policy.lacks_state is lacks_state
