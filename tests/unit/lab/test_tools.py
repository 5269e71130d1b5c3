"""The scripts that build programs, with a Go that is played."""

import shutil
import subprocess
from pathlib import Path

from tests.paths import ROOT

_GO = r"""#!/bin/sh
case $1 in
version) echo go version go1.25.0 linux/amd64 ;;
mod)
    cat <<'END'
{
	"Path": "k8s.io/kubernetes",
	"Error": "proxy: 403 Forbidden\n\tsee \"help\""
}
END
    exit 1
    ;;
*) exit 2 ;;
esac
"""


def test_sources_of_kubernetes_that_cannot_be_fetched_are_said_with_gos_reason(tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text(_GO)
    go.chmod(0o755)
    shell = shutil.which("sh")
    assert shell
    command = [shell, "lab/kubernetes.sh", str(tmp_path / "cache"), "kubectl", "kubelet"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.splitlines()[1:] == [
        r"kubectl kubelet is left out: go mod download failed: proxy: 403 Forbidden\n\tsee \"help\""
    ]
