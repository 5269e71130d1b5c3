"""The archive of `flannelette sysdump`."""

import tarfile
from io import BytesIO


def unpacked(data: bytes) -> dict[str, str]:
    """The text of each member, by its name below the archive's own directory."""
    with tarfile.open(fileobj=BytesIO(data), mode="r:gz") as tar:
        return {member.name.partition("/")[2]: tar.extractfile(member).read().decode() for member in tar}  # type: ignore[union-attr]
