"""The command line where not all of its packages are installed."""

import os
import subprocess
import sys

import pytest


def run(*missing: str, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """`flannelette` without these packages."""
    start = "from flannelette.services.ctl.main import main; main()"
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); {start}"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_its_packages_it_names_the_command_that_installs_them() -> None:
    done = run("click", arguments=("status",))
    wanted = "flannelette: the command line needs the package click: pip install 'flannelette[ctl]'\n"
    assert (done.returncode, done.stderr) == (1, wanted)


@pytest.mark.parametrize(
    ("missing", "package", "command"),
    [
        ("rich", "rich", ("status",)),
        ("yaml", "PyYAML", ("leases", "-o", "yaml")),
        ("cryptography", "cryptography", ("certs", "ca", "/nonexistent")),
    ],
)
def test_a_command_names_the_package_that_it_lacks(missing: str, package: str, command: tuple[str, ...]) -> None:
    done = run(missing, arguments=command)
    wanted = f"flannelette: this command needs the package {package}: pip install 'flannelette[ctl]'\n"
    assert (done.returncode, done.stderr) == (1, wanted)


@pytest.mark.parametrize("command", ["status", "peers", "leases", "rules"])
def test_in_the_images_of_the_services_there_is_less_of_it_and_enough(command: str) -> None:
    missing = ("cryptography", "pygments", "markdown_it")
    done = run(*missing, arguments=("--socket-dir=/nonexistent", command))
    assert done.returncode == 2
    assert "there is no directory /nonexistent" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_reader_of_flanneld_s_help_may_have_enough() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "flannelette.services.ctl.main", "flanneld", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.stderr == b""
