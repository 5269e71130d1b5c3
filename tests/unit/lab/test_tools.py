"""The scripts that build programs, with a Go that is played: what they say, and how they end."""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.waiting import equals, eventually, eventually_exists, has

_GO = r"""#!/bin/sh
case $1 in
version) echo go version go1.25.0 linux/amd64 ;;
mod)
    cat <<'END'
{
	"Path": "k8s.io/kubernetes",
	"Error": "proxy: 403 Forbidden\n\tsee \"help\""
}
END
    exit 1
    ;;
*) exit 2 ;;
esac
"""


def test_sources_of_kubernetes_that_cannot_be_fetched_are_said_with_gos_reason(tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text(_GO)
    go.chmod(0o755)
    shell = shutil.which("sh")
    assert shell
    command = [shell, "lab/kubernetes.sh", str(tmp_path / "cache"), "kubectl", "kubelet"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.splitlines()[1:] == [
        r"kubectl kubelet is left out: go mod download failed: proxy: 403 Forbidden\n\tsee \"help\""
    ]


class Machine:
    """The scripts in a directory without .venv; whatever is built or fetched there takes for ever."""

    def __init__(self, directory: Path) -> None:
        shutil.copytree(ROOT / "lab", directory / "lab", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        self.directory = directory
        self.builds = directory / "builds"
        self.builds.write_text("")
        for name in ("go", "apt-get"):
            program = directory / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\necho $$ >>{self.builds}\nexec sleep 1000\n")
            program.chmod(0o755)

    def make_test(self, *words: str) -> "subprocess.Popen[bytes]":
        """`make test`, in which the words take the place of pytest."""
        environment = {"PATH": f"{self.directory}/bin:/usr/bin:/bin"}
        # Whoever started these tests may ignore a signal, as nohup does; a shell cannot trap that.
        command = ["env", "--default-signal", "sh", "lab/test.sh", str(self.directory / "cache"), "all", *words]
        return subprocess.Popen(command, cwd=self.directory, env=environment, start_new_session=True)

    def running(self) -> list[int]:
        """The processes that build something."""
        return [process for process in map(int, self.builds.read_text().split()) if _runs(process)]

    def is_locked(self) -> bool:
        """Whether the next `make test` would wait for them."""
        lock = str(self.directory / "cache" / "tools.lock")
        return subprocess.run(["flock", "--nonblock", lock, "true"], check=False).returncode != 0


def _runs(process: int) -> bool:
    try:
        return "sleep" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False


def _members(group: int) -> set[int]:
    there = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return {process for process in there if _group_of(process) == group}


def _group_of(process: int) -> int:
    with suppress(ProcessLookupError):
        return os.getpgid(process)
    return 0


async def test_builds_end_with_the_tests_or_what_interrupts_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    started = f"until [ $(wc -l <{machine.builds}) = 2 ]; do sleep 0.1; done"
    assert machine.make_test("sh", "-c", started).wait(PATIENCE) == 0
    await eventually(lambda: (machine.running(), machine.is_locked()), equals(([], False)))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        machine.builds.write_text("")
        interrupted = machine.make_test("sh", "-c", f"echo >{number.name}; exec sleep 1000")
        await eventually(machine.running, has(2))
        await eventually_exists(tmp_path / number.name)  # a shell loses a signal between fork and exec
        os.killpg(interrupted.pid, number)
        assert interrupted.wait(PATIENCE) != 0
        await eventually(lambda: (machine.running(), machine.is_locked()), equals(([], False)))


async def test_the_next_tests_wait_for_builds_that_outlive_what_started_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    run = machine.make_test("sleep", "1000")
    await eventually(machine.running, has(2))
    builds = machine.running()
    group = os.getpgid(builds[0])
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(PATIENCE)
    try:
        for process in _members(group) - set(builds):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        assert machine.is_locked()
    finally:
        os.killpg(group, signal.SIGKILL)
    await eventually(machine.is_locked, equals(False))


def _go(directory: Path, version: str) -> Path:
    """A Go of this version, which says no more than that."""
    directory.mkdir(parents=True)
    go = directory / "go"
    go.write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
    go.chmod(0o755)
    return directory


def _found(*path: Path) -> tuple[int, str]:
    """What lab/go.sh answers with these directories on the PATH."""
    shell, environment = shutil.which("sh") or "sh", {"PATH": ":".join(map(str, path))}
    done = subprocess.run(
        [shell, "lab/go.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(any(Path("/usr/lib").glob("go-*")), reason="this machine has Debian's Go beside that of the PATH")
def test_a_go_that_fetches_a_newer_one_fits_and_an_older_one_is_named_with_what_is_needed(tmp_path: Path) -> None:
    for version in ("go1.21.13", "go1.24", "go1.30rc1"):
        fitting = _go(tmp_path / version, version)
        assert _found(fitting) == (0, f"{fitting}\n")
    code, said = _found(_go(tmp_path / "old", "go1.19.8"))
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith(f"the newest Go here is 1.19 ({tmp_path}/old/go); 1.21 or newer is needed (")
    (tmp_path / "none").mkdir()
    assert _found(tmp_path / "none")[1].startswith("Go, which builds it, is not installed; 1.21 or newer is needed (")


@pytest.mark.parametrize("which", ["all", "wanted"])
def test_what_an_old_go_cannot_build_is_said_once_and_no_test_waits_for_it(which: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    shutil.rmtree(tmp_path / "bin")
    _go(tmp_path / "bin", "go1.19.8")
    apt = tmp_path / "bin" / "apt-get"
    apt.symlink_to("/bin/false")
    cache = tmp_path / "cache"
    wanted = " ".join(f"{cache}/tools.wanted/{each}" for each in ("promtool", "cloud", "wheels"))
    wait = f'until [ -d {cache}/tools.todo ] && [ -z "$(ls {cache}/tools.todo)" ]; do touch {wanted}; sleep 0.1; done'
    command = ["sh", "lab/test.sh", str(cache), which, "sh", "-c", wait]
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=machine.directory, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the newest Go here is 1.19") == 1, done.stderr
    assert "tools: grpcurl helm cnitool flanneld kube-apiserver kubectl are left out" in done.stderr
