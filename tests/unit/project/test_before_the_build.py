"""What the compose lab needs is checked before anything is built, each lack in one line that says what to install.

Regression tests of hole 19.
"""

import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from flannelette.services.runtime.process.version import VERSION
from tests.pages.terminal import Terminal
from tests.paths import ROOT
from tests.patience import PATIENCE

BUILD, CHECK, LAB, TEST = (
    "deploy/images/build.sh",
    "deploy/check.sh",
    "deploy/compose/lab.sh",
    "deploy/compose/test.sh",
)
TOOLS = "sh awk cat cut date df dirname head id mktemp printf rm sed sleep tail tr true unshare stty".split()
NETWORKS = " ".join(sorted(path.stem for path in (ROOT / "deploy/compose/networks").iterdir()))
NO_COMPOSE = "missing: docker compose: apt-get install docker-compose (version 1.29 and 2 will do)"


class Machine:
    """Only the programs that are put on it; what a program of docker is asked is noted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir()
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name) or name)
        self.asked = directory / "asked"
        self.asked.write_text("")

    def install(self, name: str, answers: str) -> None:
        program = self.bin / name
        program.unlink(missing_ok=True)  # a link to the machine's own
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.asked}\ncase "$*" in\n{answers}\nesac\n')
        program.chmod(0o755)

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": str(self.bin), "XDG_CACHE_HOME": str(self.directory), "HOME": str(self.directory)}
        return subprocess.run(
            ["sh", str(ROOT / script), *arguments],
            env=variables | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )


ENGINE = "version) ;;\n*) exit 1 ;;"
NO_ENGINE = "version) echo 'Cannot connect to the Docker daemon' >&2; exit 1 ;;\n*) exit 1 ;;"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_lab_without_docker_compose_says_so_before_it_builds_anything(machine: Machine) -> None:
    machine.install("docker", ENGINE)
    done = machine.run(LAB)
    assert (done.returncode, done.stdout, done.stderr) == (77, "", f"{NO_COMPOSE}\n")
    assert "build" not in machine.asked.read_text()


def test_everything_that_is_missing_is_said_at_once(machine: Machine) -> None:
    done = machine.run(LAB)
    assert (done.returncode, done.stderr.splitlines()) == (
        77,
        ["missing: docker: apt-get install docker.io", NO_COMPOSE],
    )


def test_an_engine_of_the_machine_and_either_compose_are_enough(machine: Machine) -> None:
    machine.install("docker", "version | 'compose version') ;;\n*) exit 1 ;;")
    assert machine.run(CHECK, "lab").returncode == 0
    machine.install("docker", ENGINE)
    machine.install("docker-compose", "*) ;;")
    assert machine.run(CHECK, "lab").returncode == 0


@pytest.mark.skipif(
    subprocess.run(["unshare", "--map-root-user", "--net", "true"], check=False).returncode != 0,
    reason="namespaces are forbidden here",
)
def test_a_lab_of_ipsec_names_the_modules_that_the_kernel_lacks(machine: Machine) -> None:
    machine.install("docker", "version | 'compose version') ;;\n*) exit 1 ;;")
    machine.install("ip", "*state*) echo 'Error: no such algorithm' >&2; exit 2 ;;\n*) ;;")
    done = machine.run(LAB, BACKEND="ipsec")
    assert (done.returncode, done.stderr.splitlines()) == (
        77,
        [
            "missing: IPsec in the kernel (Error: no such algorithm): modprobe -a xfrm_user esp4, or another "
            "BACKEND, such as wireguard or vxlan"
        ],
    )
    assert machine.run(CHECK, "lab", BACKEND="vxlan").returncode == 0
    machine.install("ip", "*) ;;")
    assert machine.run(CHECK, "lab", BACKEND="ipsec").returncode == 0


def test_where_no_engine_answers_its_reason_is_said_and_what_one_of_our_own_lacks(machine: Machine) -> None:
    machine.install("docker", NO_ENGINE)
    lines = machine.run(CHECK, "build").stderr.splitlines()
    if os.getuid() or not Path("/usr/sbin/dockerd").exists():
        assert lines[0].startswith(
            "missing: a docker engine: none answers (Cannot connect to the Docker daemon), and "
        )
    for name in ("dockerd", "containerd", "runc", "ip", "iptables", "debootstrap", "docker-compose"):
        machine.install(name, "*) ;;")
    if not os.getuid():
        assert machine.run(CHECK, "lab").stderr == ""
        machine.install("unshare", "*) echo 'unshare failed: Operation not permitted' >&2; exit 1 ;;")
    (line, *_) = machine.run(CHECK, "lab").stderr.splitlines()
    assert "run this as root" in line if os.getuid() else "Operation not permitted" in line


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts an engine of its own, which needs the space")
def test_a_disk_that_is_too_small_is_said_with_what_it_takes(machine: Machine) -> None:
    machine.install("docker", NO_ENGINE)
    for name in ("dockerd", "containerd", "runc", "ip", "debootstrap"):
        machine.install(name, "*) ;;")
    done = machine.run(CHECK, "build", FLANNELETTE_DISK_MB="1000000000")
    assert done.returncode == 77
    assert f"MB are free in {machine.directory}, and the images take 1000000000" in done.stderr


NO_EMULATOR = (
    "missing: an emulator for linux/arm64: apt-get install qemu-user-static binfmt-support; "
    "update-binfmts --enable qemu-aarch64\n"
)
REGISTERED = "enabled\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: {}\noffset 0\nmagic 7f454c46\n"


@pytest.mark.parametrize(
    ("platform", "known", "engine_kernel", "said"),
    [
        ("linux/amd64", None, "6.1", ""),
        ("linux/arm64", None, "6.1", NO_EMULATOR),
        ("linux/arm64", REGISTERED.format("PO"), "6.1", NO_EMULATOR),
        ("linux/arm64", REGISTERED.format("POCF").replace("en", "dis", 1), "6.1", NO_EMULATOR),
        ("linux/arm64", REGISTERED.format("POCF"), "6.1", ""),
        ("linux/arm64", None, "6.12-of-another-machine", ""),
        ("arm64", None, "6.1", "missing: a platform: PLATFORM is linux/amd64 or linux/arm64, not arm64\n"),
    ],
)
def test_images_of_another_architecture_need_an_emulator_that_containers_have_as_well(
    machine: Machine, platform: str, known: str | None, engine_kernel: str, said: str
) -> None:
    machine.install("docker", f"version) ;;\ninfo*) echo {engine_kernel} ;;\n*) exit 1 ;;")
    machine.install("uname", "-m) echo x86_64 ;;\n-r) echo 6.1 ;;")
    (machine.directory / "known").write_text(known or "")
    answer = f"exec {shutil.which('cat')} {machine.directory}/known" if known else "echo No such file >&2; exit 1"
    machine.install("cat", f"/proc/sys/fs/binfmt_misc/qemu-aarch64) {answer} ;;")
    done = machine.run(CHECK, "build", PLATFORM=platform)
    assert (done.returncode, done.stderr) == (77 if said else 0, said)


@pytest.mark.parametrize(
    ("platform", "tags", "base"),
    [
        ({}, f"latest {VERSION}", "flannelette-base:bookworm"),
        ({"PLATFORM": "linux/amd64"}, f"latest {VERSION}", "flannelette-base:bookworm"),
        ({"PLATFORM": "linux/arm64"}, f"arm64 {VERSION}-arm64", "flannelette-base:bookworm-arm64"),
    ],
)
def test_images_of_both_architectures_have_names_of_their_own(
    machine: Machine, platform: dict[str, str], tags: str, base: str
) -> None:
    machine.install(
        "docker", "version*) echo linux/amd64 ;;\n'image inspect'* | build*) echo 1000000 lease ;;\n*) exit 1 ;;"
    )
    assert machine.run(BUILD, "lease", **platform).returncode == 0
    (build,) = (line.split() for line in machine.asked.read_text().splitlines() if line.startswith("docker build"))
    tagged = [name for flag, name in pairwise(build) if flag == "--tag"]
    assert tagged == [f"flannelette-lease:{tag}" for tag in tags.split()]
    assert f"BASE_IMAGE={base}" in build
    assert [name for flag, name in pairwise(build) if flag == "--platform"] == [*platform.values()]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"NODES": "abc"}, "abc is not a number of hosts: use 1 to 244"),
        ({"NODES": "500"}, "500 is not a number of hosts: use 1 to 244"),
        ({"BACKEND": "vxlam"}, f"compose-lab: STORE is etcd or embedded, BACKEND is one of {NETWORKS}"),
        ({"STORE": "disk"}, f"compose-lab: STORE is etcd or embedded, BACKEND is one of {NETWORKS}"),
    ],
)
def test_wrong_settings_are_said_before_the_engine_is_asked(
    machine: Machine, environment: dict[str, str], said: str
) -> None:
    machine.install("docker", ENGINE)
    done = machine.run(LAB, **environment)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert machine.asked.read_text() == ""


def test_the_tests_of_the_lab_are_skipped_with_the_reasons(machine: Machine) -> None:
    machine.install("docker", ENGINE)
    done = machine.run(TEST, "false")
    assert (done.returncode, done.stderr) == (0, f"{NO_COMPOSE}\n")
    assert done.stdout == "compose-test is skipped: the lines above say what is missing\n"


STEPS = """
. ./deploy/progress.sh
progress_of 2
step "the first" sh -c 'echo working; sleep 1'
step "the second" sh -c 'echo "no such host" >&2; exit 3' || echo "code $?"
"""


def test_progress_is_plain_lines_where_there_is_no_terminal_and_a_failure_brings_its_reason() -> None:
    done = subprocess.run(
        ["sh", "-euc", STEPS], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    first, ended, second, failed, reason = done.stderr.splitlines()
    assert (first, second, reason) == ("[1 of 2] the first", "[2 of 2] the second", "no such host")
    assert ended.startswith("[1 of 2] the first: done in ")
    log = failed.partition("(all of it is in ")[2].removesuffix("):")
    assert failed.startswith("[2 of 2] the second: failed after ")
    assert Path(log).read_text() == "no such host\n"
    Path(log).unlink()
    assert done.stdout == "code 3\n"


def test_on_a_terminal_progress_is_one_line_that_counts_and_shows_what_is_said(tmp_path: Path) -> None:
    work = f"echo Step 1/9; until [ -e {tmp_path}/seen ]; do sleep 0.1; done"
    counts = re.compile(r"\[1 of 1\] the image, [1-9]\d* s: Step 1/9")
    with Terminal(f". ./deploy/progress.sh; progress_of 1; step 'the image' sh -c '{work}'", ROOT) as terminal:
        terminal.until_matching(counts)
        (tmp_path / "seen").touch()
        assert terminal.exit_code() == 0
    shown = terminal.output.replace("\x1b[K", "").split("\r")
    assert any(map(counts.fullmatch, shown))
    assert shown[-1].startswith("[1 of 1] the image: done in ")
    assert terminal.output.count("\n") == 1


def test_no_reason_of_an_engine_or_of_compose_is_thrown_away() -> None:
    """Only questions with a yes or a no are asked in silence."""
    silent = (
        "docker version",
        "compose version",
        "image inspect",
        "command -v",
        "kill ",
        "stty size",
        "git rev-parse",
    )
    thrown = [
        f"{script.name}: {line.strip()}"
        for script in (*(ROOT / "deploy").rglob("*.sh"),)
        for line in script.read_text().splitlines()
        if "2>/dev/null" in line or ">/dev/null 2>&1" in line
        if not any(question in line for question in silent)
    ]
    assert thrown == []
