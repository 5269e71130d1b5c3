"""What make says of settings that it would pass over, and of what a target lacks."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.patience import PATIENCE

MAKE = shutil.which("make") or "make"
MAKEFILE = (ROOT / "Makefile").read_text()
SETTINGS = (ROOT / "lab/settings.mk").read_text()


def make(*words: str, **variables: str) -> tuple[int, str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/", **variables}
    done = subprocess.run(
        [MAKE, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("given", ["nodes=5", "Backend=host-gw", "json=x.json"])
def test_a_setting_that_is_not_in_capitals_is_told(given: str) -> None:
    name, _, value = given.partition("=")
    code, said = make("help", given)
    assert (code, f"settings are in capitals: write {name.upper()}={value}, not {given}" in said) == (2, True), said


@pytest.mark.parametrize("given", ["NODES=5", "ARGS=-k nodes=5", "foo=1", "DEB_BUILD_OPTIONS=nocheck"])
def test_other_words_are_not_in_the_way(given: str) -> None:
    assert make("help", given)[0] == 0


def test_every_setting_that_the_list_of_targets_has_is_known() -> None:
    settings = re.search(r"^SETTINGS := ((?:.*\\\n)*.*)", SETTINGS, re.MULTILINE)
    assert settings is not None
    named = set(re.findall(r"\b([A-Z_]{2,})=", " ".join(re.findall(r"^## (.*)", MAKEFILE, re.MULTILINE))))
    assert named <= set(settings[1].split())


def test_the_list_begins_with_ten_targets_for_everybody_and_has_the_others_behind_a_heading() -> None:
    code, said = make()
    first, *others = said.split("\n\nFor maintainers: ")
    assert (code, said) == make("help")
    assert code == 0
    assert re.findall(r"^  ([a-z-]+) ", first, re.MULTILINE) == (
        "venv lab shell ping compose-lab images deb test-quick test clean".split()
    )
    listed = {name for text in others for name in re.findall(r"^  ([a-z-]+) ", text, re.MULTILINE)}
    assert {"lint", "types", "soak", "check-generated", "release-state", "clean-cache"} <= listed
    assert max(map(len, said.splitlines())) <= 80


def test_no_target_is_taken_for_the_file_of_its_name() -> None:
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert re.findall(r"[a-z-]+", phony[1]) == re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)


def test_a_target_is_one_command() -> None:
    """What takes more is a script, which can be read and checked."""
    bodies = re.findall(r"^[a-z-]+:.*?; (.*)", MAKEFILE, re.MULTILINE)
    assert len(bodies) > 30
    assert [body for body in bodies if re.search(r"&&|\|\||;|\bfor\b|\bif ", body)] == []


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("simulate", "NODES=5", "CHURN=0.5"), "-m lab.simulate --nodes=5 --churn=0.5"),
        (
            ("chaos", "BACKEND=vxlan,host-gw", "ARGS=--json 'a b'"),
            "-m lab.chaos --backend=vxlan,host-gw --json 'a b'",
        ),
        (
            ("fuzz", "TARGET=etcd routes", "SECONDS=600"),
            "sh tests/fuzz/run.sh --target=etcd --target=routes --seconds=600",
        ),
        (("test", "ARGS=-k 'vxlan or ipip'", "PARALLEL="), " wanted .venv/bin/pytest -rfEs"),
    ],
)
def test_settings_are_options_of_the_program(words: tuple[str, ...], command: str) -> None:
    code, said = make("--dry-run", *words)
    assert (code, command in " ".join(said.split())) == (0, True), said


def test_a_directory_for_temporary_files_that_is_not_there_is_told(tmp_path: Path) -> None:
    code, said = make("help", TMPDIR=f"{tmp_path}/none")
    assert (code, f"there is no directory TMPDIR={tmp_path}/none: make it, or unset TMPDIR" in said) == (2, True), (
        said
    )
    assert make("help", TMPDIR=str(tmp_path))[0] == 0


def test_grpcurl_without_a_go_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "mkdir", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    code, said = make("grpcurl", f"CACHE={tmp_path}/cache", PATH=f"{tmp_path}/bin")
    about, *rest = said.splitlines()
    assert (code, about.startswith("grpcurl is left out: ")) == (2, True), said
    assert [line.startswith("make: ***") for line in rest] == [True], said


def test_a_check_of_the_installation_names_what_its_python_lacks(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\ncase $* in *find_spec*venv*) ;; *) exit 1 ;; esac\n")
    python.chmod(0o755)
    code, said = make("install-check", PYTHON=str(python))
    assert code == 2
    assert said.startswith(
        f"install-check: {python} lacks pip and ensurepip: apt-get install python3-pip python3-venv"
    )
