"""Puts the hashes of its files behind each version of a list: hashes.py LIST. Run it with a Python that has pip."""

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

# For which there are images, packages or releases: the Pythons of Debian and Ubuntu, on both architectures.
PYTHONS: Final = ("3.11", "3.12", "3.13")
ARCHITECTURES: Final = ("x86_64", "aarch64")
GLIBC: Final = range(36, 4, -1)  # that of Debian 12 first


def canonical(name: str) -> str:
    """A distribution's name as all spellings of it are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def files(lines: list[str], python: str, architecture: str) -> dict[str, tuple[str, str]]:
    """The address and the hash of the file that pip takes for each line, as the index says it."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted, report = Path(scratch, "wanted"), Path(scratch, "report")
        wanted.write_text("\n".join(lines))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
        command += ["--ignore-installed", "--no-deps", "--target", f"{scratch}/nothing", "--python-version", python]
        command += [f"--platform=manylinux_2_{minor}_{architecture}" for minor in GLIBC]
        command += [f"--platform=manylinux2014_{architecture}", "--requirement", str(wanted), "--report", str(report)]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text())["install"]
    return {
        canonical(each["metadata"]["name"]): (
            each["download_info"]["url"],
            each["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for each in found
    }


def main() -> None:
    """Rewrites the list."""
    path = Path(sys.argv[1])
    head, *lines = (line.partition(" --hash=")[0] for line in path.read_text().splitlines())
    hashes: dict[str, set[str]] = defaultdict(set)
    names = {canonical(line.partition("==")[0]): line for line in lines}
    compiled = list(lines)
    for architecture in ARCHITECTURES:
        for python in PYTHONS:
            found = files(compiled, python, architecture)
            for name, (_, digest) in found.items():
                hashes[name].add(digest)
            # What is the same file everywhere needs no second look.
            if compiled == lines:
                compiled = [
                    names[name] for name, (url, _) in found.items() if re.search(r"_(x86_64|aarch64)\.whl", url)
                ]
    text = [" ".join([names[name], *(f"--hash=sha256:{each}" for each in sorted(hashes[name]))]) for name in names]
    path.write_text("\n".join([head, *text]) + "\n")


if __name__ == "__main__":
    main()
