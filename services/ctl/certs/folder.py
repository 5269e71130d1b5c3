"""The directory of a lab's certificates: ca.crt and ca.key, and NAME-KIND.crt and NAME-KIND.key of everybody else."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from flannelette.services.ctl.certs.issue import Authority, Issued, Unusable, read_authority

AUTHORITY: Final = "ca"


def certificate_path(directory: Path, stem: str) -> Path:
    """Returns the path of a certificate; `stem` is NAME-KIND."""
    return directory / f"{stem}.crt"


def key_path(directory: Path, stem: str) -> Path:
    """Returns the path of a certificate's private key; `stem` is NAME-KIND."""
    return directory / f"{stem}.key"


def require_free(directory: Path, stems: Iterable[str], *, force: bool) -> bool:
    """Whether no file will be overwritten. Raises Unusable if one would be and nobody allowed to."""
    taken = [
        p for stem in stems for p in (certificate_path(directory, stem), key_path(directory, stem)) if p.exists()
    ]
    if taken and not force:
        raise Unusable(f"{taken[0]} is there already: nothing was made; --force replaces it")
    return not taken


def authority_in(directory: Path) -> Authority:
    """The authority of the directory. Raises Unusable."""
    certificate, key = certificate_path(directory, AUTHORITY), key_path(directory, AUTHORITY)
    if not certificate.exists() and not key.exists():
        raise Unusable(f"there is no authority in {directory}: make one first: flannelette certs ca {directory}")
    try:
        return read_authority(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise Unusable(f"{error.filename} cannot be read: {error.strerror}") from None


def keep(directory: Path, issued: Mapping[str, Issued]) -> None:
    """Writes all of them, each file at once; keys are for the owner only, from the first byte. Raises Unusable."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for stem, pair in issued.items():
            _write(key_path(directory, stem), pair.key, 0o600)
            _write(certificate_path(directory, stem), pair.certificate, 0o644)
    except OSError as error:
        raise Unusable(f"{error.filename} cannot be written: {error.strerror}") from None


def _write(path: Path, content: bytes, mode: int) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # whatever the umask is
        file.write(content)
    new.replace(path)
