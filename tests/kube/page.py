"""Pages of docs/, typed at the cluster: what they say to do is what the tests do."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lab.kubernetes.cluster import Cluster
from lab.kubernetes.node import run
from lab.kubernetes.parts import CACHE
from lab.topology import OUTSIDE
from tests.pages.document import Block, sections
from tests.paths import ROOT

PAGE: Final = {section.title: section for section in sections(ROOT / "docs/kubernetes.md")}
UNINSTALL: Final = {section.title: section for section in sections(ROOT / "docs/uninstall.md")}


class Shell:
    """An administrator's, in a copy of deploy/, outside of the nodes."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.home = home
        self._environment = {
            "KUBECONFIG": str(cluster.config),
            "HOME": str(home),
            "PATH": os.pathsep.join([str(CACHE / "bin"), os.environ["PATH"]]),  # the machine's kubectl may be older
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        shutil.copytree(ROOT / "deploy", home / "deploy")

    async def type(self, commands: str) -> str:
        """What they print. Raises CommandFailed at the first that fails."""
        environment = [f"{name}={value}" for name, value in self._environment.items()]
        return await run(*OUTSIDE.command("env", "-C", str(self.home), *environment, "sh", "-euc", commands))

    async def type_section(
        self, title: str, instead: Mapping[str, str] | None = None, blocks: slice = slice(None)
    ) -> None:
        """The commands of a section of docs/kubernetes.md, or of some of its blocks."""
        for block in PAGE[title].blocks[blocks]:
            await self.type_block(block, instead)

    async def type_block(self, block: Block, instead: Mapping[str, str] | None = None) -> str:
        """What its commands print, with words that differ here."""
        words = {".venv/bin/flannelette": f"{sys.executable} -m flannelette.services.ctl.main"} | dict(instead or {})
        commands = block.commands
        for old, new in words.items():
            commands = commands.replace(old, new)
        return await self.type(commands)
