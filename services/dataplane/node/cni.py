"""The CNI configuration. The container runtime makes pods from the moment that it finds one, so it comes last."""

import json
from pathlib import Path
from typing import Protocol

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.os.files import replace_file
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_MODE = 0o600
"""Mode of the file: its reader is the container runtime, root; the CIS benchmark for Kubernetes asks for this."""


@frozen
class CniConfiguration:
    """What to install, and where."""

    path: Path
    text: str


def read_configuration(source: Path, path: str) -> CniConfiguration | None:
    """Reads the configuration from the file that holds it; None if there is no path to install it at.

    Raises Misconfigured: what is no configuration must not replace one that works.
    """
    if not path:
        return None
    try:
        text = source.read_text(encoding="utf-8")
        document = json.loads(text)
    except FileNotFoundError:
        raise Misconfigured(
            f"there is no CNI configuration {source}: mount the ConfigMap with flannel's cni-conf.json there, name "
            "another file with --cni-config-path, or leave --cni-install-path out"
        ) from None
    except OSError as error:
        raise Misconfigured(f"cannot read the CNI configuration {source}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Misconfigured(f"the CNI configuration {source} is not valid JSON: {error}") from None
    if not isinstance(document, dict) or not document.get("name") or not (document.keys() & {"plugins", "type"}):
        raise Misconfigured(f"the CNI configuration {source} lacks a name or its plugins")
    return CniConfiguration(Path(path), text)


class Iterations(Protocol):
    """The controller, as far as the installer waits for it."""

    @property
    def iterations(self) -> int: ...  # noqa: D102 - see Controller, also below
    async def iteration_after(self, seen: int) -> None: ...  # noqa: D102


class CniInstaller:
    """Guarantee: nothing is written before this node's overlay carries packets, and nothing is ever removed.

    After that the file is put back when it is gone, but not compared again: service meshes add plugins of their own
    to it.
    """

    def __init__(self, configuration: CniConfiguration, health: Health) -> None:
        self._configuration = configuration
        self._health = health
        self._reason = ""
        self._is_installed = False

    def look(self) -> None:
        """Installs what is missing, if there is nothing else in the way of being ready."""
        if set(self._health.reasons) - {self._reason}:
            return
        path = self._configuration.path
        try:
            if not (self._is_installed and path.exists()):
                if replace_file(path, self._configuration.text, _MODE):
                    log.info("CNI configuration installed", path=str(path))
                self._is_installed = True
            self._reason = ""
        except OSError as error:
            self._reason = f"cannot install the CNI configuration {path}: {error.strerror}; no new pod starts here"
        self._health.set("CNI configuration", self._reason)

    async def run(self, loop: Iterations) -> None:
        """Installs the configuration when it is due, until cancelled: looks after every iteration, so at least as
        often as the kernel is audited.
        """
        while True:
            seen = loop.iterations
            self.look()
            await loop.iteration_after(seen)
