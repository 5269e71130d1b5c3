"""WireGuard's key file, as flannel keeps it, and the public key."""

import os
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flannelette.services.core.errors import Misconfigured
from flannelette.services.dataplane.backends.wireguard import decoded, private_key, public_key


def test_a_key_file_is_made_as_flannel_makes_it_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "flannel" / "wgkey"
    made = private_key(path)
    content = path.read_text()
    assert (len(content), b64decode(content), path.stat().st_mode & 0o7777) == (44, bytes(made), 0o400)
    assert (made[0] & 7, made[31] >> 6) == (0, 1)
    assert private_key(path) == made
    assert [each.name for each in path.parent.iterdir()] == ["wgkey"]
    path.chmod(0o600)
    path.write_text(content + "\n")
    assert private_key(path) == made


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o644])
def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "wgkey"
    private_key(path)
    path.chmod(mode)
    with pytest.raises(Misconfigured, match=rf"wgkey may be read by others \(mode {mode:04o}\): `chmod 0400"):
        private_key(path)


def test_a_key_file_of_another_user_or_that_is_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wgkey"
    private_key(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid:
        with pytest.raises(Misconfigured, match=r"wgkey belongs to user \d+, who may read it"):
            private_key(path)
    for other in (tmp_path, tmp_path / "pipe"):
        if other.name == "pipe":
            os.mkfifo(other, 0o400)
        with pytest.raises(Misconfigured, match=r"is no file"):
            private_key(other)


@pytest.mark.parametrize("content", ["", "nonsense", b64encode(bytes(31)).decode(), b64encode(bytes(32)).decode()])
def test_a_key_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "wgkey"
    path.write_text(content)
    path.chmod(0o400)
    with pytest.raises(Misconfigured, match=r"wgkey holds no key: delete it") as refused:
        private_key(path)
    assert not content or content not in str(refused.value)


def test_the_public_key_is_that_of_x25519() -> None:
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f92ebc099d6aa9f0ba47c2a6e2a")
    for private in (alice, bytes(range(32)), bytes(range(255, 223, -1))):
        theirs = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
        assert public_key(private) == theirs
    assert decoded("not base64") is None
