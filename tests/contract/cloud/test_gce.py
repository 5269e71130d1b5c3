"""gce: the real process with google-auth, against a server that speaks the documented requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clouds.gce import TOKEN, Project, environment, google
from tests.clouds.process import Leases, cloud_process

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
