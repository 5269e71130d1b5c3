"""The wheel, installed beside other packages: it brings one name, and uses no other one."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.paths import ROOT

PROGRAMS: Final = ("flannelette", "flannelette-lease", "flannelette-dataplane", "flannelette-masq")
_OTHER: Final = "raise SystemExit('this is a package of another program')\n"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index", "--no-deps")
    run(*pip, "--no-build-isolation", "--wheel-dir", directory, ROOT, cwd=directory)
    (made,) = directory.glob("*.whl")
    return made


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an environment that has what we depend on, but not this checkout."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    (packages,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies))
    return tmp_path / "venv/bin/python"


def other_wheel(directory: Path) -> Path:
    """The wheel of another program, whose top-level package is `services`."""
    path = directory / "other-1-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: other\nVersion: 1\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"services/__init__.py": _OTHER, "other-1.dist-info/METADATA": about, "other-1.dist-info/WHEEL": tags}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("other-1.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def install(python: Path, wheel: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet")
    run(*pip, "--no-index", "--no-deps", "--ignore-installed", wheel, cwd=python.parent)


def test_it_installs_one_package_and_nothing_beside_it(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith((".dist-info", ".data"))} == {"flannelette"}


@pytest.mark.parametrize("is_first", [True, False], ids=["installed before it", "installed after it"])
def test_another_program_may_have_a_package_named_services(
    wheel: Path, python: Path, tmp_path: Path, is_first: bool
) -> None:
    """Installed beside it, and in the folder in which a command is typed; both stay whole."""
    other = other_wheel(tmp_path)
    for each in (other, wheel) if is_first else (wheel, other):
        install(python, each)
    folder = tmp_path / "project"
    (folder / "services").mkdir(parents=True)
    (folder / "services/__init__.py").write_text(_OTHER)
    (folder / "flannelette/services").mkdir(parents=True)  # a checkout of ours, as it stands beside other projects
    (folder / "flannelette/services/__init__.py").write_text(_OTHER)
    for program in PROGRAMS:
        assert "0." in run(python.parent / program, "--version", cwd=folder)
        module = program.partition("-")[2] or "ctl"
        assert "0." in run(python, "-m", f"flannelette.services.{module}.main", "--version", cwd=folder)
    where = run(python, "-c", "import flannelette.services as found; print(found.__path__)", cwd=folder)
    assert "site-packages/flannelette/services" in where
    said = subprocess.run(
        [python, "-c", "import services"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "this is a package of another program" in said.stderr, "the other program's package is no longer its own"
