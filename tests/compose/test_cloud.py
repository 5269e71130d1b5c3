"""The image of flannelette-cloud by its compose file, in the engine's network, where a moto plays EC2."""

import json
import os
from pathlib import Path

import pytest

from tests.clouds.aws import environment, make_vpc, metadata, moto
from tests.clouds.process import Leases
from tests.compose.composition import Container, docker
from tests.compose.test_compose_page import blocks, is_ready, typed
from tests.paths import ROOT

pytestmark = pytest.mark.compose

PLACE = ROOT / "deploy/compose/cloud"
PROJECT = "flannelette-test-cloud"
GROUP = 10001
NETWORK = '{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}'


async def test_what_the_page_says_writes_routes_without_a_right_and_leaves_them(
    directory: Path, tmp_path: Path
) -> None:
    sockets = directory / "cloud"
    sockets.mkdir()
    os.chown(sockets, 0, GROUP)
    sockets.chmod(0o2770)  # what is made there has the group
    leases = Leases(sockets, NETWORK)
    with moto(tmp_path) as ec2, leases.service:
        vpc = make_vpc(ec2)
        interface = vpc.instance("10.99.0.11")
        subnet = await leases.join("n1", "10.99.0.11")
        with metadata(vpc) as url:
            file = tmp_path / "cloud.env"
            file.write_text("".join(f"{name}={value}\n" for name, value in environment(ec2, url).items()))
            settings = {"RUN": str(sockets), "CLOUD_ENV": str(file), "COMPOSE_PROJECT_NAME": PROJECT}
            variables = {k: v for k, v in os.environ.items() if not k.startswith("COMPOSE_")} | settings
            up, status, logs, down = blocks("docs/compose.md", "A cloud's routes")[0].splitlines()
            try:
                typed(up, PLACE, variables)
                typed(status, PLACE, variables)
                assert vpc.routes() == {subnet: interface}
                container = running()
                assert beyond_its_rights(container) == ["bind mounts", "it is in the machine's network"]
                assert is_ready("cloud", str(container.inspected["Id"]))
                typed(logs, PLACE, variables)
                assert "Traceback" not in docker("logs", str(container.inspected["Id"]))
            finally:
                typed(down, PLACE, variables)
                docker("volume", "rm", f"{PROJECT}_state")
        assert vpc.routes() == {subnet: interface}


def running() -> Container:
    (name,) = docker("ps", "--quiet", "--no-trunc", f"--filter=label=com.docker.compose.project={PROJECT}").split()
    (inspected,) = json.loads(docker("inspect", name))
    return Container("cloud", inspected["Config"]["Image"], inspected["State"]["Pid"], inspected)


def beyond_its_rights(container: Container) -> list[str]:
    """What the compose lab allows to nobody: the page says what for."""
    return sorted(each.removeprefix("cloud: ").partition(" [")[0] for each in container.excess())
