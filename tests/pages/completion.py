"""`make man` writes deploy/completion, too: what a shell reads to complete `flannelette`."""

from typing import Final

from click.shell_completion import get_completion_class

from flannelette.services.ctl.main import cli
from tests.paths import ROOT

FILES: Final = {"bash": "flannelette.bash", "zsh": "_flannelette", "fish": "flannelette.fish"}
"""By the shell."""
FOLDER: Final = ROOT / "deploy/completion"


def source(shell: str) -> str:
    """The text of the file."""
    found = get_completion_class(shell)
    assert found
    return f"{found(cli, {}, 'flannelette', '_FLANNELETTE_COMPLETE').source()}\n"


def write() -> None:
    """Writes the files."""
    for each, name in FILES.items():
        (FOLDER / name).write_text(source(each))
