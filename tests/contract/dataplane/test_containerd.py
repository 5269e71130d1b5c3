"""The CNI configuration in force: what a real containerd takes of a host's files, and what we say that it takes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from flannelette.services.dataplane.diagnose.cni import cni_view
from flannelette.services.dataplane.diagnose.host_programs import HostFiles
from tests.services.containerd import call, containerd, texts

FLANNEL: Final = json.dumps({"name": "cbr0", "cniVersion": "0.3.1", "plugins": [{"type": "flannel"}]})
BRIDGE: Final = json.dumps({"name": "net", "cniVersion": "0.3.1", "type": "bridge"})
_THREE, _TWO = '"io.containerd.cri.v1.runtime".cni', '"io.containerd.grpc.v1.cri".cni'

CONFIGURATIONS: Final = {
    "version 3": {"config.toml": f'version = 3\n[plugins.{_THREE}]\nconf_dir = "ROOT/there"\n'},
    "version 2": {"config.toml": f'version = 2\n[plugins.{_TWO}]\nconf_dir = "ROOT/there"\n'},
    "an import": {
        "config.toml": f'version = 3\nimports = ["conf.d/*.toml"]\n[plugins.{_THREE}]\nconf_dir = "ROOT/not"\n',
        "conf.d/a.toml": f'version = 3\n[plugins.{_THREE}]\nconf_dir = "ROOT/there"\n',
    },
    "an import with another part of the section": {
        "config.toml": 'version = 3\nimports = ["ROOT/etc/containerd/b.toml"]\n'
        f'[plugins.{_THREE}]\nconf_dir = "ROOT/there"\n',
        "b.toml": f"version = 3\n[plugins.{_THREE}]\nmax_conf_num = 1\n",
    },
}

FILES: Final = {
    "one": {"10-flannel.conflist": FLANNEL},
    "another first": {"05-other.conf": BRIDGE, "10-flannel.conflist": FLANNEL},
    "JSON is a suffix": {"05-other.json": BRIDGE, "10-flannel.conflist": FLANNEL},
    "no suffix": {"05-other": "{", "10-flannel.conflist": FLANNEL},
    "a broken first": {"05-other.conf": "{", "10-flannel.conflist": FLANNEL},
    "an empty first": {"05-other.conflist": "", "10-flannel.conflist": FLANNEL},
    "a broken last": {"10-flannel.conflist": FLANNEL, "20-other.conf": "{"},
    "a list as one": {"05-other.conf": FLANNEL, "10-flannel.conflist": FLANNEL},
    "one as a list": {"05-other.conflist": BRIDGE, "10-flannel.conflist": FLANNEL},
    "no type": {"05-other.conflist": '{"name": "n", "plugins": [{}]}', "10-flannel.conflist": FLANNEL},
    "no name": {"05-other.conflist": '{"plugins": [{"type": "x"}]}', "10-flannel.conflist": FLANNEL},
    "no name of one": {"05-other.conf": '{"type": "x"}', "10-flannel.conflist": FLANNEL},
    "a version that is none": {"05-other.conf": '{"type": "x", "cniVersion": 1}', "10-flannel.conflist": FLANNEL},
    "a constant": {"05-other.conf": '{"type": "x", "n": NaN}', "10-flannel.conflist": FLANNEL},
}


@dataclass(frozen=True)
class Said:
    """What containerd says of CNI."""

    directory: str
    plugins: Sequence[str]
    """Those of the configuration in force; none: it has none."""


def said(socket: Path) -> Said:
    """The answer of the call Status, asked with `verbose`: the entry `cniconfig` of its map `info`."""
    answer = call(socket, "Status", b"\x08\x01")
    info = {texts(entry, 1)[0]: texts(entry, 2)[0] for entry in texts(answer, 2)}
    known: dict[str, Any] = json.loads(info[b"cniconfig"])
    used = [each["Config"]["Plugins"] for each in known["Networks"] if each["Config"]["Name"] != "cni-loopback"]
    plugins = [plugin["Network"]["type"] for network in used for plugin in network or ()]
    return Said(known["PluginConfDir"], plugins)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def prepare(root: Path, configuration: dict[str, str], files: dict[str, str]) -> None:
    """A host with all plugins, and a configuration of flannel's in the usual place."""
    write(root / "etc/containerd", {name: text.replace("ROOT", str(root)) for name, text in configuration.items()})
    write(root / "there", files)
    write(root / "opt/cni/bin", {"flannel": ""})
    write(root / "etc/cni/net.d", {"10-flannel.conflist": FLANNEL})


def ours(root: Path) -> Said:
    """What we say of it, of the same files below another root."""
    for path in (root / "etc/containerd").rglob("*.toml"):
        path.write_text(path.read_text().replace(str(root), ""))
    view = cni_view(HostFiles(cni=root / "etc/cni/net.d", root=root))
    assert view is not None
    path, called = next(iter(view.configurations.items()))
    plugins = [each for each in called if each in ("flannel", "bridge", "x")]
    return Said(str(path.parent), [] if view.broken else ["flannel"] if "flannel" in plugins else plugins)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_the_directory_is_the_one_that_containerd_reads(tmp_path: Path, configuration: str) -> None:
    prepare(tmp_path, CONFIGURATIONS[configuration], FILES["one"])
    with containerd(tmp_path) as socket:
        found = said(socket)
    assert found == Said(f"{tmp_path}/there", ["flannel"])
    assert ours(tmp_path) == found


@pytest.mark.parametrize("files", FILES)
def test_the_configuration_in_force_is_the_one_that_containerd_takes(tmp_path: Path, files: str) -> None:
    prepare(tmp_path, CONFIGURATIONS["version 3"], FILES[files])
    with containerd(tmp_path) as socket:
        found = said(socket)
    assert ours(tmp_path) == found
