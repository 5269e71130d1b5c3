"""A command line is run by its entry, in this process; what it prints and its exit code come out."""

from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from flannelette.services.ctl.connect.contexts import nodes_of, one_of
from flannelette.services.ctl.main import cli
from flannelette.services.ctl.options import Shared


def run(*words: str, environment: Mapping[str, str] | None = None) -> Result:
    """`flannelette WORDS...`"""
    return CliRunner().invoke(cli, words, env=environment)


def addresses(**options: Any) -> dict[str, list[str]]:
    """Where a command with these options looks for the services of each node. Raises Misconfigured."""
    return {name: [target.address for target in node.values()] for name, node in nodes_of(Shared(**options)).items()}


def address_of_any(service: str, **options: Any) -> str:
    """Where a command that any node will do for looks for a service."""
    return one_of(nodes_of(Shared(**options)), any_will_do=True)[service].address  # type: ignore[index]  # a service
