"""Keys for a cloud's API: from the configuration, the environment, the SDK's own places, or the instance's role.

No log, error or answer has them: what a provider says passes `Keys.hide`, for some repeat what they were sent.
"""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from services.cloud.providers.metadata import Metadata
from services.cloud.routes import CloudError, Trouble
from services.core.formats.gojson import GoObject

_RENEWED_BEFORE: Final = 300.0
"""Seconds."""
HIDDEN: Final = "(hidden)"


@dataclass(frozen=True, slots=True)
class Keys:
    """What signs a request."""

    name: str = field(repr=False)
    """AccessKeyId, or SecretId."""
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    """Of a role."""
    expires: float = math.inf
    """Unix time."""

    def hide(self, text: str) -> str:
        """The text without the keys."""
        for each in filter(None, (self.secret, self.token, self.name)):
            text = text.replace(each, HIDDEN)
        return text


class KeyChain:
    """The first place that has keys: the options of the network, flannel's variables, the SDK's places, the role."""

    def __init__(self, options: GoObject, sdk: Callable[[], Keys | None], role: Callable[[], Keys]) -> None:
        self._given = _complete(options.secret("AccessKeyID"), options.secret("AccessKeySecret")) or _complete(
            os.environ.get("ACCESS_KEY_ID", ""), os.environ.get("ACCESS_KEY_SECRET", "")
        )
        self._sdk = sdk
        self._role = role
        self._latest: Keys | None = None

    def keys(self) -> Keys:
        """Those to sign with now. Raises CloudError: there are none."""
        found = self._given or self._sdk()
        if found is None and self._latest is not None and self._latest.expires > time.time() + _RENEWED_BEFORE:
            return self._latest
        self._latest = found or self._role()
        return self._latest

    def hide(self, text: str) -> str:
        """The text without the latest keys."""
        return self._latest.hide(text) if self._latest else text


def _complete(name: str, secret: str) -> Keys | None:
    """flannel wants both, or looks elsewhere."""
    return Keys(name, secret) if name and secret else None


def role_keys(own: Metadata, path: str, names: tuple[str, str, str], expires: Callable[[Any], float]) -> Keys:
    """The keys of the instance's role, of a document with these names; `expires` reads the time from it."""
    role = next(iter(own.text(path).splitlines()), "")
    text = own.text(path + role)
    try:
        said = json.loads(text)
        name, secret, token = (str(said[each]) for each in names)
        return Keys(name, secret, token, expires(said))
    except (ValueError, KeyError, TypeError):
        raise CloudError(Trouble.DENIED, "no credentials", f"role {role!r} of the instance has no keys") from None
