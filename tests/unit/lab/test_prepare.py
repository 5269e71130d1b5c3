"""What `make lab` and `make venv` install, with a Python that is played."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT

_PYTHON = """#!/bin/sh
case "$*" in
"-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*"pip install"*) echo "$*" | tr ' ' '\\n' | grep -e '^\\.\\[' -e cache >&2 ;;
*print*) echo /usr/bin/env ;;
esac
"""
"""Any `-c` succeeds; an installation says what of."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    programs = {"python": _PYTHON, "iptables": "#!/bin/sh\necho 'iptables v1.8.9 (nf_tables)'\n"}
    programs |= dict.fromkeys(("ip", "nft", "cc"), "#!/bin/sh\n")
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return clone


def prepare(clone: Path, level: str, **environment: str) -> list[str]:
    """The words of pip's command line that matter."""
    shell = shutil.which("sh")
    assert shell
    variables = {"PATH": f"{clone.parent}:{os.defpath}", "PYTHON": "python", "HOME": str(clone)}
    done = subprocess.run(
        [shell, str(ROOT / "lab/prepare.sh"), level],
        cwd=clone,
        env=variables | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()[1:]


def test_a_lab_installs_no_developers_tools_and_leaves_no_cache(clone: Path) -> None:
    assert prepare(clone, "lab") == ["--no-cache-dir", ".[dataplane,ctl]"]
    assert prepare(clone, "lab") == []


def test_a_cache_that_is_there_is_used(clone: Path) -> None:
    (clone / ".cache/pip").mkdir(parents=True)
    assert prepare(clone, "lab") == [".[dataplane,ctl]"]


def test_more_is_added_when_more_is_needed(clone: Path) -> None:
    (clone / ".cache/pip").mkdir(parents=True)
    prepare(clone, "lab")
    assert prepare(clone, "lab", STORE="etcd") == [".[dataplane,ctl,lab-etcd]"]
    assert prepare(clone, "kube-lab") == []
    assert prepare(clone, "dev") == [".[dev]"]
    assert prepare(clone, "lab", STORE="etcd") == []


def test_the_library_of_legacy_iptables_comes_where_that_is_used(clone: Path) -> None:
    (clone.parent / "iptables").write_text("#!/bin/sh\necho 'iptables v1.8.9 (legacy)'\n")
    assert prepare(clone, "lab")[-1] == ".[dataplane,ctl,masq]"
