"""What stands beside the code: the threat model's tests exist, workflows are valid and hold no secrets."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from flannelette.services.runtime.process.version import VERSION
from tests.conftest import LONGEST
from tests.paths import ROOT

WORKFLOWS: Final = sorted((ROOT / ".github/workflows").glob("*.yml"))
BACKED: Final = re.findall(r"`(tests/\S+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())


@pytest.mark.parametrize(("path", "name"), BACKED, ids=[name for _, name in BACKED])
def test_what_the_threat_model_promises_is_tested(path: str, name: str) -> None:
    functions = (node for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name"))
    assert name in {node.name for node in functions}


@pytest.mark.parametrize("path", LONGEST)
def test_a_file_of_tests_that_comes_first_exists(path: str) -> None:
    assert (ROOT / "tests" / path).is_file()


def test_every_promise_of_the_threat_model_names_a_test() -> None:
    """A regression test of hole 17."""
    _, _, rows = (ROOT / "SECURITY.md").read_text().partition("| sentence | test |\n|---|---|\n")
    promises = rows.partition("\n\n")[0].splitlines()
    assert [row for row in promises if not re.fullmatch(r"\| .+ \| `tests/\S+\.py::\w+` \|", row)] == []


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_one(workflow: Path) -> None:
    """By the forge's own schema, which the tool brings along."""
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_an_action_is_named_by_its_commit_and_its_version(workflow: Path) -> None:
    used = [line.partition("uses:")[2].strip() for line in workflow.read_text().splitlines() if "uses:" in line]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_exists_and_holds_no_secret(workflow: Path) -> None:
    assert "secrets." not in workflow.read_text()
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps(workflow):
        commands = step.get("run", "")
        assert all((ROOT / script).is_file() for script in re.findall(r"^(?:ba)?sh ([^ $]+)", commands, re.MULTILINE))
        assert set(re.findall(r"^make ([a-z-]+)", commands, re.MULTILINE)) <= targets
        assert "@" in step.get("uses", "@"), "an action has a version"


def test_the_devcontainer_is_the_machine_of_ci() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]
    assert (container["image"], " ".join(container["runArgs"])) == tuple(
        job["container"][k] for k in ("image", "options")
    )
    assert container["onCreateCommand"] == f"{job['steps'][0]['run']} && make venv"


def test_the_hooks_before_a_commit_run_what_make_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    makefile = "".join((ROOT / name).read_text() for name in ("Makefile", "tests/lint.sh"))
    for hook in hooks:
        program = hook["entry"].removeprefix(".venv/bin/")
        assert program.removeprefix("make ") in makefile.replace("$(BIN)/", "").replace(".venv/bin/", "")


def test_the_hooks_before_a_commit_pass_over_generated_code() -> None:
    """They name each changed file, and ruff checks what is named."""
    generated = str(ROOT / "proto/flannelette/lease/v1/lease_pb2.py")
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, generated], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_changelog_has_the_version_that_is_built() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert version[1] in (ROOT / "CHANGELOG.md").read_text()
    assert version[1] == VERSION, "what services say"


def test_a_release_has_the_names_that_the_manifests_and_the_pages_give_its_images() -> None:
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    assert "NAME: flannelette-${{ matrix.service }}" in workflow
    assert "/$NAME:${GITHUB_REF_NAME#v}" in workflow
    chart = (ROOT / "deploy/helm/flannelette/templates/_helpers.tpl").read_text()
    assert 'printf "%sflannelette-%s:%s"' in chart
    assert "ghcr.io/OWNER/flannelette-lease:X.Y.Z" in (ROOT / "SECURITY.md").read_text()
    images = re.findall(r"image: (flannelette-\w+)", (ROOT / "deploy/kubernetes/base/daemonset.yaml").read_text())
    services = yaml.safe_load(workflow)["jobs"]["images"]["strategy"]["matrix"]["service"]
    assert set(images) <= {f"flannelette-{each}" for each in services}
