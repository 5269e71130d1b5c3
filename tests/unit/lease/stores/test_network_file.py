"""The network configuration in a file: what cannot be used is told with the file and what to do."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.lease.stores.store import read_network_file
from tests.examples.leases import SMALL, SMALL_JSON


def test_flannels_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(SMALL_JSON)
    assert read_network_file(path) == SMALL


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no network configuration .* mount the ConfigMap"),
        (b"", "is not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"Network":"10.0.0.0/8","Backend":{"Type":"nonsense"}}', "does not exist: write one of"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_what_is_no_configuration_is_an_error_that_names_the_file(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    path = tmp_path / "net.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=sentence) as refused:
        read_network_file(path)
    assert str(path) in str(refused.value)


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        read_network_file(tmp_path)


def test_a_network_without_backend_is_udp_as_in_flannels_code_and_warns(tmp_path: Path) -> None:
    """A regression test of defect 21 of flannel v0.28."""
    path = tmp_path / "net.json"
    path.write_text('{"Network":"10.244.0.0/16"}')
    network = read_network_file(path, leases_subnets=False)
    assert network.backend_type == "udp"
    assert "its documentation says vxlan" in network.warnings[0]
