"""The options of a backend in the chart: those that the comments of values.yaml promise it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.dataplane.backends import BACKENDS
from tests.kubernetes.manifests import parse, pick, run_tool
from tests.pages.chart import CHART, values

OPTIONS: dict[str, Any] = {
    "backendPort": 4001,
    "mtu": 1401,
    "vni": 41,
    "GBP": True,
    "directRouting": True,
    "macPrefix": "0E-4A",
    "psk": "secret",
    "tunnelMode": "ipv4",
    "backendPortv6": 4002,
    "keepaliveInterval": 42,
}


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_a_backend_gets_the_options_whose_comment_names_it_and_no_other(backend: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"flannel": OPTIONS | {"backend": backend}}))
    documents = parse(run_tool("helm", "template", "flannel", str(CHART), f"--values={tmp_path}/values.yaml"))
    network = json.loads(pick(documents, "ConfigMap")["data"]["net-conf.json"])
    meanings = {value.path.removeprefix("flannel."): value.meaning for value in values()}
    promised = [OPTIONS[name] for name in OPTIONS if backend in re.findall(r"[\w-]+", meanings[name])]
    got = network["Backend"]
    assert got.pop("Type") == backend
    assert sorted(map(str, got.values())) == sorted(map(str, promised))
