"""The programs of the lab's cloud, all on the outside host, and what they need of this machine."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lab.options import BadOption
from lab.programs import Program
from lab.topology import OUTSIDE, Host
from lab.vpc.places import EC2_URL, METADATA_URL

AWS: Final = "aws-vpc"
SERVER, ROUTER, CLOUD = "vpc", "router", "cloud"
_ROOT: Final = Path(__file__).resolve().parents[2]
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flannelette", "cloud")
"""The environment that lab/cloud.sh makes."""


def require_sdk(backend: str) -> None:
    """Raises BadOption where backend aws-vpc lacks its environment."""
    if backend == AWS and not (_CACHE / "made-for").exists():
        raise BadOption(f"BACKEND={AWS}: there is no moto in {_CACHE}: `make lab BACKEND={AWS}` installs it")


def server(hosts: Iterable[Host], directory: Path) -> Program:
    """EC2 and the metadata service, with an interface for each host."""
    arguments = [str(vpc_file(directory)), *(str(host.address) for host in hosts)]
    return _program(SERVER, directory, _sdk("lab.vpc.server", *arguments))


def router(directory: Path) -> Program:
    """What carries packets between the hosts, once the server is there."""
    return _program(ROUTER, directory, (sys.executable, "-m", "lab.vpc.router", vpc(directory)["table"]))


def cloud(lease_address: str, directory: Path) -> Program:
    """Returns the program flannelette-cloud of the lab."""
    home = directory / CLOUD
    flags = (f"--lease-address={lease_address}", f"--socket-dir={home}", f"--state-dir={home / 'state'}")
    where = (f"AWS_ENDPOINT_URL={EC2_URL}", f"AWS_EC2_METADATA_SERVICE_ENDPOINT={METADATA_URL}")
    return _program(CLOUD, directory, ("env", *where, *_sdk("flannelette.services.cloud.main", *flags)))


def vpc_file(directory: Path) -> Path:
    """What the server has made, once it has."""
    return directory / CLOUD / "vpc.json"


def vpc(directory: Path) -> dict[str, str]:
    """The names of `table` and `subnet`."""
    found: dict[str, str] = json.loads(vpc_file(directory).read_text())
    return found


def _sdk(module: str, *arguments: str) -> tuple[str, ...]:
    """A module in the environment with the SDKs."""
    path = f"PYTHONPATH={_ROOT}:{_ROOT / 'proto'}"
    return ("env", path, str(_CACHE / "bin/python"), "-m", module, *arguments)


def _program(name: str, directory: Path, arguments: tuple[str, ...]) -> Program:
    return Program(name, "", OUTSIDE, arguments, directory / CLOUD)
