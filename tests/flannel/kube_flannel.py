"""kube-flannel on a node: a real flanneld in the container that its manifest describes."""

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.flannel.real import require_flanneld
from tests.kubernetes.api_server import Document
from tests.kubernetes.containers import ENVIRONMENT, Mount, Rights, start
from tests.kubernetes.kubelet import Kubelet
from tests.patience import PATIENCE

_MOUNTS: Final = {"run": "/run/flannel", "flannel-cfg": "/etc/kube-flannel", "xtables-lock": "/run/xtables.lock"}
_TOKEN: Final = "/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_RIGHTS: Final = Rights(capabilities=("net_admin", "net_raw", "dac_override", "chown"), is_root_read_only=False)


class KubeFlannel:
    """It runs while its block does, or until it is stopped; what it makes stays."""

    def __init__(self, kubelet: Kubelet, template: Document) -> None:
        """The volumes of the same names are our pod's: it has kube-flannel's, and more."""
        pod = template["spec"]
        self._directory = kubelet.directory / "kube-flannel"
        self._directory.mkdir(exist_ok=True)
        number = len(list(self._directory.iterdir()))
        directory = self._directory / f"pod{number}"
        directory.mkdir()
        volumes = {v["name"]: kubelet.volume(v, directory, "kube-flannel", pod) for v in pod["volumes"]}
        mounts = [Mount(volumes[name], path) for name, path in _MOUNTS.items()]
        mounts += [Mount(volumes["token"], _TOKEN, True), Mount(Path(require_flanneld()), "/opt/bin/flanneld", True)]
        self._install(volumes["flannel-cfg"] / "cni-conf.json", kubelet.host / "etc/cni/net.d/10-flannel.conflist")
        self._log = directory / "flanneld.log"
        environment = {
            **ENVIRONMENT,
            "NODE_NAME": kubelet.node,
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
        }
        command = ["/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr", "--iface=eth0"]
        root = directory / "root"
        self._process = start(kubelet.namespace, root, command, mounts, _RIGHTS, environment, self._log)

    def __enter__(self) -> "KubeFlannel":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop(signal.SIGKILL)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until(self, said: str) -> None:
        """Until it has logged this, a regular expression."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(said, self.log):
            assert self._process.poll() is None, f"flanneld ended by itself:\n{self.log}"
            assert time.monotonic() < deadline, f"flanneld does not say {said!r}:\n{self.log}"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """SIGTERM, as its pod gets it."""
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:  # the kubelet has no more patience either
                self._process.kill()
                self._process.wait()

    def _install(self, source: Path, target: Path) -> None:
        """Its init container."""
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
