"""gce: the real process with google-auth, against a server that speaks the documented requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clouds.gce import TOKEN, Project, environment, google
from tests.clouds.process import Leases, Provider, assert_no_secret, cloud_process, has, tells

GCE = '{"Network":"10.5.0.0/16","Backend":{"Type":"gce"}}'


@pytest.fixture
def project() -> Iterator[Project]:
    with google() as found:
        yield found


async def test_routes_follow_nodes_that_come_go_and_move(project: Project, tmp_path: Path) -> None:
    leases = Leases(tmp_path, GCE)
    for n in (1, 2, 3):
        project.instance(f"vm{n}", f"10.99.0.1{n}")
    project.instance("vm4", "10.99.0.14", forwards=False)
    with leases.service:
        cidrs = {n: await leases.join(f"n{n}", f"10.99.0.1{n}") for n in (1, 2, 3)}
        async with cloud_process(tmp_path, environment(project), f"--cloud-endpoint={project.url}") as cloud:
            await cloud.until_routes("n1", "n2", "n3")
            assert project.table() == {cidrs[n]: f"vm{n}" for n in (1, 2, 3)}
            assert sorted(project.routes) == sorted(
                f"flannel-{cidr.replace('.', '-').replace('/', '-')}" for cidr in cidrs.values()
            )
            project.refusals += [(403, "rateLimitExceeded"), (503, "backendError")]
            await leases.leave("n3", cidrs[3])
            project.instance("vm5", "10.99.0.15")
            assert await leases.join("n2", "10.99.0.15") == cidrs[2]
            await cloud.until_routes("n1", "n2")
            assert project.table() == {cidrs[1]: "vm1", cidrs[2]: "vm5"}
            await leases.join("n4", "10.99.0.14")
            status = await cloud.until(lambda status: any("--can-ip-forward" in each for each in status.reasons))
            assert not status.ready
            project.refusals += [(403, "forbidden")] * 2
            await cloud.until(lambda status: any("docs/backends.md#gce" in each for each in status.reasons))
    told = (tmp_path / "cloud.log").read_text()
    assert TOKEN not in told


_READING: Final = {
    "rateLimitExceeded": (403, ""),
    "backendError": (503, ""),
    "required": (401, "give the instance a service account with the role of docs/backends.md#gce"),
    "forbidden": (403, "give the service account the role of docs/backends.md#gce"),
    "notFound": (404, "correct the project, or the network"),
}
"""Of the first call of a look, by reason: the status, and what we add."""
_WRITING: Final = {
    "POST /global/routes": {
        "forbidden": (403, "give the service account the role", "cloud-credentials"),
        "quotaExceeded": (403, "have Google raise the quota `Static routes per VPC network`", "cloud-limit"),
        "rateLimitExceeded": (403, "", ""),
        "alreadyExists": (409, "", "cloud-route"),
        "invalid": (400, "", "cloud-route"),
    },
    "operation": {
        "QUOTA_EXCEEDED": (200, "have Google raise the quota `Static routes per VPC network`", "cloud-limit"),
        "RESOURCE_IN_USE": (200, "", "cloud-route"),
    },
}
"""Of an insert of a route: status, what we add, and the finding's check."""


async def test_what_google_refuses_is_said_with_its_reason_and_the_routes_stay(
    project: Project, tmp_path: Path
) -> None:
    leases = Leases(tmp_path, GCE)
    project.instance("vm1", "10.99.0.11")
    arguments = (f"--cloud-endpoint={project.url}", "--cloud-interval=1")
    with leases.service:
        table = {await leases.join("n1", "10.99.0.11"): "vm1"}
        async with cloud_process(tmp_path, environment(project), *arguments) as cloud:
            await cloud.until_routes("n1")
            for reason, (status, cure) in _READING.items():
                project.faults["GET /aggregated/instances"] = (status, reason)
                await cloud.until(tells(f"HTTP {status} {reason}", cure))
                assert project.table() == table
                project.faults.clear()
                await cloud.until_routes("n1")
            project.routes["odd"] = {"name": "odd"}
            await cloud.until(tells("unexpected answer"))
            del project.routes["odd"]
            await cloud.until_routes("n1")
            names = ["n1"]
            for where, rows in _WRITING.items():
                for reason, (status, cure, check) in rows.items():
                    project.faults[where] = (status, reason)
                    number = len(names) + 1
                    project.instance(f"vm{number}", f"10.99.0.{10 + number}")
                    cidr = await leases.join(f"n{number}", f"10.99.0.{10 + number}")
                    answer = await cloud.until(tells(reason, cure))
                    assert not check or check in {each.check for each in answer.findings}
                    assert project.table() == table
                    project.faults.clear()
                    table[cidr] = f"vm{number}"
                    names.append(f"n{number}")
                    await cloud.until_routes(*names)
                    assert project.table() == table
            assert not any(call.startswith("DELETE") for call in project.calls)
    assert_no_secret(tmp_path, TOKEN)


async def test_a_route_is_replaced_whatever_names_are_taken(project: Project, tmp_path: Path) -> None:
    leases = Leases(tmp_path, GCE)
    for n in (1, 2):
        project.instance(f"vm{n}", f"10.99.0.1{n}")
    with leases.service:
        cidr = await leases.join("n1", "10.99.0.11")
        name = f"flannel-{cidr.replace('.', '-').replace('/', '-')}"
        elsewhere = {"name": name, "destRange": cidr, "network": "x/networks/other", "nextHopInstance": "x/y"}
        project.routes[name] = elsewhere
        async with cloud_process(tmp_path, environment(project), f"--cloud-endpoint={project.url}") as cloud:
            await cloud.until_routes("n1")
            for n in (2, 1):
                await leases.join("n1", f"10.99.0.1{n}")
                await cloud.until(has("n1", f"vm{n}"))
        assert project.routes.pop(name) == elsewhere, "the route of another network stays"
        assert project.table() == {cidr: "vm1"}


def test_each_route_has_the_error_that_google_gave_for_it(project: Project, tmp_path: Path) -> None:
    provider = Provider("gce", tmp_path, **environment(project))
    for n in (1, 2, 3):
        project.instance(f"vm{n}", f"10.99.0.1{n}")
    project.faults["POST /global/routes 10.5.1.0/24"] = (400, "invalid")
    project.faults["POST /global/routes 10.5.2.0/24"] = (403, "forbidden")
    try:
        leases = [(f"10.5.{n}.0/24", f"10.99.0.1{n}") for n in (1, 2, 3)]
        found = provider.do(leases, endpoint=project.url, rounds=1)
    finally:
        provider.end()
    denied = "HTTP 403 forbidden: as Google says it, forbidden"
    reasons = {cidr: reason.partition(": give")[0] for cidr, reason in found["errors"].items()}
    assert reasons == {
        "10.5.1.0/24": "HTTP 400 invalid: as Google says it, invalid",
        "10.5.2.0/24": denied,
        "10.5.3.0/24": denied,
    }
    assert project.calls["POST /global/routes"] == 2, "what is not allowed is not tried again"


async def test_it_ends_although_google_lets_it_wait(project: Project, tmp_path: Path) -> None:
    leases = Leases(tmp_path, GCE)
    project.instance("vm1", "10.99.0.11")
    project.hold.clear()
    with leases.service:
        await leases.join("n1", "10.99.0.11")
        async with cloud_process(tmp_path, environment(project), f"--cloud-endpoint={project.url}") as cloud:
            await cloud.until(lambda _: project.calls["POST /global/routes"] > 0)
            assert await cloud.end() == 0
