"""What a shell proposes, and the files that let it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flannelette.services.ctl.main import cli
from tests.pages.completion import FILES, FOLDER, source


@pytest.mark.parametrize("shell", FILES)
def test_the_files_of_the_package_are_those_of_the_command(shell: str) -> None:
    """`make man` writes them."""
    assert (FOLDER / FILES[shell]).read_text() == source(shell)


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        ("flannelette stat", {"status"}),
        ("flannelette status --contex", {"--context"}),
        ("flannelette status -o ", {"table", "wide", "json", "yaml"}),
        ("flannelette --context ", {"lab", "far"}),
        ("flannelette --context far --on ", {"f1"}),
        ("flannelette peers --on ", {"h1", "h2"}),
    ],
)
def test_bash_completes_commands_options_contexts_and_nodes(typed: str, proposed: set[str], tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if not bash:
        pytest.skip("there is no bash")
    contexts = tmp_path / "contexts.toml"
    contexts.write_text('current = "lab"\n[lab.nodes.h1]\n[lab.nodes.h2]\n[far.nodes.f1]\n')
    program = tmp_path / "flannelette"
    code = "from flannelette.services.ctl.main import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    words = typed.split(" ")
    script = f"""
source {FOLDER}/flannelette.bash
COMP_WORDS=({" ".join(word or '""' for word in words)}) COMP_CWORD={len(words) - 1} COMPREPLY=()
_flannelette_completion flannelette
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FLANNELETTE_CONTEXTS": str(contexts),
    }
    done = subprocess.run([bash, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == proposed


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["stauts"], "status"), (["masq", "tearown"], "teardown"), (["status", "--contxt"], "--context")],
)
def test_what_is_mistyped_is_told_with_what_was_meant(words: list[str], meant: str) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "Did you mean" in done.output
    assert meant in done.output
