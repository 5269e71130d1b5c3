"""README.md and docs/compose.md: what they tell a reader to type about containers, on a terminal."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.compose.composition import PROJECT, Composition, docker
from tests.pages.document import sections
from tests.pages.reader import compose
from tests.pages.terminal import Terminal
from tests.paths import ROOT
from tests.patience import PATIENCE

pytestmark = [pytest.mark.compose, pytest.mark.usefixtures("directory")]

STREAMS = re.compile(r" (ping|watch|logs --follow) ?")
SECONDS = 300.0
NETWORK = "flannelette-test-host"
BY_CTRL_C = (0, 130, -signal.SIGINT)


def blocks(page: str, title: str) -> list[str]:
    (section,) = (part for part in sections(ROOT / page) if part.title == title)
    return [block.commands for block in section.blocks]


def typed(command: str, place: Path, environment: dict[str, str]) -> None:
    """A look is repeated until it succeeds; what streams is ended by Ctrl-C when it has printed something."""
    command = command.replace("docker compose", compose())
    end = time.monotonic() + SECONDS
    while True:
        with Terminal(command, place, environment) as terminal:
            if STREAMS.search(command):
                terminal.until_printed("\n")
                code = terminal.interrupt()
                assert code in BY_CTRL_C, f"{command} exits with {code}:\n{terminal.output}"
                return
            if terminal.exit_code(SECONDS) == 0:
                return
            assert " exec " in command, f"{command}\n{terminal.output}"
            assert time.monotonic() < end, f"{command}\n{terminal.output}"
        time.sleep(0.5)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Also sees to it that a test that fails leaves the others their addresses."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
    yield variables
    for project in ("flannelette", PROJECT):
        if containers(project):
            typed(
                f"docker compose --project-name {project} down --volumes --timeout 3",
                ROOT / "deploy/compose",
                variables,
            )


def containers(project: str) -> str:
    return docker("ps", "--quiet", f"--filter=label=com.docker.compose.project={project}")


def test_make_compose_lab_is_there_until_ctrl_c_and_what_it_proposes_works(environment: dict[str, str]) -> None:
    (command, _) = blocks("docs/compose.md", "In one command")
    assert f"\n{command} " in blocks("README.md", "Try it")[0]
    with Terminal(command, ROOT, environment) as lab:
        lab.until_printed("Ctrl-C ends the lab", SECONDS)
        _, _, proposed = lab.output.partition("In a second terminal:")
        place, *lines = (line.strip() for line in proposed.splitlines() if line.startswith("    "))
        assert place == f"cd {ROOT}/deploy/compose"
        has_grpcurl = (ROOT / "deploy/compose/tools/grpcurl").exists()
        for line in lines:
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").partition("=")
                assert environment[name] == value
            elif "grpcurl" not in line or has_grpcurl:
                typed(line, ROOT / "deploy/compose", environment)
        lab.interrupt()
        assert "make: ***" not in lab.output.partition("Ctrl-C ends the lab")[2]
    assert containers("flannelette") == ""


def test_the_lab_by_hand(environment: dict[str, str]) -> None:
    (_, block) = blocks("docs/compose.md", "In one command")
    for line in block.splitlines():
        typed(line, ROOT / "deploy/compose", environment | {"COMPOSE_PROJECT_NAME": PROJECT})
    assert containers(PROJECT) == ""


def test_the_lab_with_other_settings(directory: Path, environment: dict[str, str]) -> None:
    """Another backend and another store are tried in tests/compose/test_compose_variants.py."""
    page = (ROOT / "docs/compose.md").read_text()
    (rows,) = re.findall(r"\| more hosts \|.*\n.*another underlay.*", page)
    generate, choose, up = re.findall(r"`([^`]+)`", rows)
    assert (choose, up) == ("export COMPOSE_FILE=generated.yml", "UNDERLAY=10.77.3 docker compose up --detach")
    copy = Composition(5, directory).copy / "deploy/compose"
    typed(generate, copy, environment)
    settings = environment | {"COMPOSE_PROJECT_NAME": PROJECT, "COMPOSE_FILE": "generated.yml", "UNDERLAY": "10.77.3"}
    try:
        typed(up, copy, settings)
        typed("docker compose exec h5 flannelette status", copy, settings)
        typed("docker compose exec pod5 ping 10.77.3.3", copy, settings)
    finally:
        typed("docker compose down --volumes --timeout 3", copy, settings)


@pytest.fixture
def host() -> Iterator[str]:
    """A container in the place of a host, with an etcd that is reached as the page has it."""
    with ExitStack() as stack:
        docker("network", "create", "--subnet=10.0.0.0/24", NETWORK)
        stack.callback(docker, "network", "rm", NETWORK)
        flags = ("--detach", "--rm", f"--network={NETWORK}")
        urls = ("--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://10.0.0.2:2379")
        etcd = docker("run", *flags, "--ip=10.0.0.2", "flannelette-etcd", *urls).strip()
        stack.callback(docker, "rm", "--force", etcd)
        config = (ROOT / "deploy/compose/networks/vxlan.json").read_text()
        put = ["docker", "exec", "--interactive", etcd, "etcdctl", "put", "/coreos.com/network/config"]
        subprocess.run(put, input=config, text=True, check=True, capture_output=True)
        name = docker("run", *flags, "--hostname=h1", "flannelette-lab").strip()
        stack.callback(docker, "rm", "--force", name)
        yield name


def test_the_images_by_themselves(host: str, directory: Path) -> None:
    """In that container's network, and with directories of the test for those of a host: nothing else differs."""
    commands = blocks("docs/compose.md", "The images")[0].replace("--network host", f"--network container:{host}")
    commands = re.sub(r"(?<= )/(run|var/lib)/", rf"{directory}/\1/", commands)
    (directory / "run").mkdir()
    started = subprocess.run(["sh", "-euc", commands], capture_output=True, text=True, check=False)
    running = started.stdout.split()
    try:
        assert (started.returncode, len(running)) == (0, 3), started.stderr
        for service, container in zip(("lease", "dataplane", "masq"), running, strict=True):
            until(partial(is_ready, service, container), partial(docker, "logs", container))
        assert "FLANNEL_IPMASQ=true" in (directory / "run/flannel/subnet.env").read_text()
        for service in ("dataplane", "masq"):  # a second after a change
            until((directory / f"var/lib/flannelette/{service}.state").exists, lambda: "it remembers nothing")
    finally:
        docker("rm", "--force", *running)


def is_ready(service: str, container: str) -> bool:
    return not subprocess.run(
        ["docker", "exec", container, "flannelette-probe", service], capture_output=True
    ).returncode


def until(condition: Callable[[], bool], reason: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, reason()
        time.sleep(0.5)
