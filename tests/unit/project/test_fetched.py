"""What a build takes from a package index: nothing whose hash is not in a list."""

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.paths import ROOT

LISTS: Final = sorted((ROOT / "deploy/images").glob("constraints*.txt"))
BUILDS: Final = ("deploy/images/Dockerfile", "deploy/debian/environment.sh", "deploy/release/dist.sh")
PIP: Final = re.compile(r"\bpip (.* )?(install|wheel|download) |-m build ")  # not: apt-get install python3-pip
FETCH: Final = ROOT / "deploy/images/fetch.sh"

# What `pip download` calls of what builds a distribution. It leaves a mark that says who was called.
BACKEND: Final = """
import pathlib
def get_requires_for_build_wheel(settings=None):
    return []
def prepare_metadata_for_build_wheel(directory, settings=None):
    pathlib.Path({mark!r}).write_text({version!r})
    place = pathlib.Path(directory, "sourced-1.0.dist-info")
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: sourced\\nVersion: 1.0\\n")
    return place.name
def build_wheel(directory, settings=None, metadata=None):
    raise AssertionError("a download builds nothing")
"""


def wheel(index: Path, name: str, version: str, files: Mapping[str, str] | None = None) -> str:
    """Puts a wheel into an index, and returns the line of a list that has its hash."""
    data = io.BytesIO()
    about = f"{name}-{version}.dist-info"
    content = {
        **(files or {f"{name}.py": ""}),
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
        archive.writestr(f"{about}/RECORD", "".join(f"{path},,\n" for path in (*content, f"{about}/RECORD")))
    return put(index, name, version, f"{name}-{version}-py3-none-any.whl", data.getvalue())


def source(index: Path, name: str, version: str) -> str:
    """Puts a source distribution into an index, and returns the line of a list that has its hash."""
    data = io.BytesIO()
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    }
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return put(index, name, version, f"{name}-{version}.tar.gz", data.getvalue())


def put(index: Path, name: str, version: str, file: str, data: bytes) -> str:
    """Adds a file to an index that is a directory."""
    place = index / name
    place.mkdir(parents=True, exist_ok=True)
    (place / file).write_bytes(data)
    links = "".join(f'<a href="{each.name}">{each.name}</a>' for each in place.iterdir() if each.suffix != ".html")
    (place / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(data).hexdigest()}"


def backend(mark: Path, version: str) -> dict[str, str]:
    """The files of a setuptools that leaves a mark when it is called."""
    return {"setuptools/__init__.py": "", "setuptools/build_meta.py": BACKEND.format(mark=str(mark), version=version)}


def fetch(directory: Path, lines: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs fetch.sh of the builds, with pip and an index that is a directory."""
    (directory / "list.txt").write_text("\n".join(lines) + "\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PYTHON": sys.executable,
        "PIP_INDEX_URL": (directory / "index").as_uri(),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }
    command = ["sh", str(FETCH), str(directory / "list.txt"), str(directory / "fetched")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def builders(tmp_path: Path) -> list[str]:
    """The lines of what builds source distributions, which every list has."""
    index = tmp_path / "index"
    files = backend(tmp_path / "mark", "1.0")
    return [wheel(index, "packaging", "1.0"), wheel(index, "setuptools", "1.0", files), wheel(index, "wheel", "1.0")]


def names(directory: Path) -> list[str]:
    """The files that were fetched."""
    place = directory / "fetched"
    return sorted(each.name for each in place.iterdir()) if place.exists() else []


def test_a_list_whose_hashes_are_those_of_the_index_is_fetched_whole(tmp_path: Path, builders: list[str]) -> None:
    lines = [*builders, wheel(tmp_path / "index", "wheeled", "1.0"), source(tmp_path / "index", "sourced", "1.0")]
    ended = fetch(tmp_path, lines)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {"wheeled-1.0-py3-none-any.whl", "sourced-1.0.tar.gz"} <= set(names(tmp_path))


@pytest.mark.parametrize("changed", ["setuptools", "wheeled", "sourced"])
def test_a_file_that_is_not_the_one_of_the_list_stops_the_build(
    tmp_path: Path, builders: list[str], changed: str
) -> None:
    """Nor does it run: a source distribution's own code, and that of what builds one."""
    lines = [*builders, wheel(tmp_path / "index", "wheeled", "1.0"), source(tmp_path / "index", "sourced", "1.0")]
    ended = fetch(tmp_path, [re.sub(f"^({changed}==.*:)....", r"\g<1>0000", line) for line in lines])
    assert ended.returncode != 0
    assert "DO NOT MATCH THE HASHES" in ended.stderr
    assert names(tmp_path) == []
    assert not (tmp_path / "mark").exists() or changed == "wheeled", "it was built before it was known"


def test_a_line_without_a_hash_stops_the_build(tmp_path: Path, builders: list[str]) -> None:
    ended = fetch(tmp_path, [*builders, wheel(tmp_path / "index", "wheeled", "1.0").partition(" ")[0]])
    assert ended.returncode != 0
    assert "--hash" in ended.stderr
    assert names(tmp_path) == []


def test_a_source_distribution_is_built_by_no_newer_version_that_an_index_has(
    tmp_path: Path, builders: list[str]
) -> None:
    """pip checks no hash of what it takes from an index to build with."""
    lines = [*builders, source(tmp_path / "index", "sourced", "1.0")]
    wheel(tmp_path / "index", "setuptools", "999.0", backend(tmp_path / "mark", "999.0"))
    ended = fetch(tmp_path, lines)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "mark").read_text() == "1.0"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_line_of_a_list_has_a_version_and_its_hashes(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 30
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+", line), line


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_library_in_c_has_the_hashes_of_both_architectures(path: Path) -> None:
    hashes = {line.partition("==")[0]: line.count("--hash=") for line in path.read_text().splitlines()}
    compiled = {"grpcio", "cryptography", "yarl", "protobuf", "lxml", "rpds-py"} & hashes.keys()
    assert compiled
    assert {name for name in compiled if hashes[name] < 2} == set()


def steps(path: str) -> list[str]:
    """The commands of a script or a Dockerfile, each on one line."""
    text = (ROOT / path).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("path", BUILDS)
def test_no_step_of_a_build_takes_anything_from_an_index_but_by_a_list(path: str) -> None:
    """fetch.sh comes first. After it pip has no index, unless another fetch.sh asks."""
    lines = steps(path)
    first = next(n for n, line in enumerate(lines) if "fetch.sh" in line and not line.startswith("COPY"))
    without = next(n for n, line in enumerate(lines) if re.match(r"(ENV|export) PIP_NO_INDEX=1 PIP_FIND_LINKS", line))
    asks = [n for n, line in enumerate(lines) if PIP.search(line) and not line.startswith("pip()")]
    assert len(asks) > 1
    assert first < without < min(asks)
    around = re.compile(r"env -u|unset|index-url|INDEX_URL|PIP_NO_INDEX=[^1]|\bcurl\b|\bwget\b|^ADD |https?:")
    assert [line for line in lines if around.search(line)] == []


def test_every_stage_of_the_images_that_has_pip_is_one_without_an_index() -> None:
    stages: dict[str, str] = {}
    stage = ""
    for line in steps("deploy/images/Dockerfile"):
        if line.startswith("FROM "):
            _, base, _, stage = line.split()
            stages[stage] = base
        elif PIP.search(line) or "/add.sh" in line:
            if line.startswith("COPY"):
                continue
            above = [stage]
            while above[-1] in stages:
                above.append(stages[above[-1]])
            assert "build" in above, line
