"""What providers share: error codes and what follows from each, the metadata service of an instance, and keys.

Codes are matched by prefix, the longest first, for providers add parts to their codes: `Forbidden.RAM`. Keys for a
cloud's API are from the configuration, the environment, the SDK's own places, or the instance's role. No log, error
or answer has them: what a provider says passes `Keys.hide`, because some repeat what they were sent.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from configparser import Error as ConfigParserError
from dataclasses import field
from functools import wraps
from http.client import HTTPException
from typing import Any, Final, ParamSpec, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from flannelette.services.cloud.routes import CloudError, Failure
from flannelette.services.core.backend_types import KeyOptions
from flannelette.services.core.frozen import frozen

_Meaning = TypeVar("_Meaning")
_Arguments = ParamSpec("_Arguments")


class Codes:
    """`troubles`: prefixes of codes, separated by blanks, by what follows; `cures`: what to do, by prefix."""

    def __init__(self, troubles: Mapping[Failure, str], cures: Mapping[str, str]) -> None:
        self._troubles = {prefix: trouble for trouble, prefixes in troubles.items() for prefix in prefixes.split()}
        self._cures = cures

    def error(self, action: str, code: str, message: str, unknown: Failure = Failure.REFUSED) -> CloudError:
        """The error for what the provider has answered to an action. `unknown`: of a code that is in no table."""
        trouble = _longest(code, self._troubles, unknown)
        return CloudError(trouble, f"{action}: {code}", message.strip(), _longest(code, self._cures, ""))


def _longest(code: str, table: Mapping[str, _Meaning], otherwise: _Meaning) -> _Meaning:
    found = max((prefix for prefix in table if code.startswith(prefix)), key=len, default=None)
    return otherwise if found is None else table[found]


def understood(call: Callable[_Arguments, _Meaning]) -> Callable[_Arguments, _Meaning]:
    """A call whose answer, if it is not as documented, fails this call and not the process."""

    @wraps(call)
    def made(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Meaning:
        try:
            return call(*arguments, **named)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise CloudError(Failure.WAIT, "unexpected answer", what, "the provider's API has changed") from error

    return made


_SECONDS = 3.0
_LARGEST = 1 << 16


class Metadata:
    """Reads texts below one URL, without a proxy. `instead`: what to set where there is no metadata service."""

    def __init__(self, url: str, instead: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url.rstrip("/")
        self._instead = instead
        self._headers = dict(headers or {})
        self._opener = build_opener(ProxyHandler({}))

    def text(self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> str:
        """One value. Raises CloudError."""
        request = Request(self._url + path, headers=self._headers | dict(headers or {}), method=method)  # noqa: S310
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return str(answer.read(_LARGEST).decode("utf-8", "replace")).strip()
        except HTTPError as error:
            code, why = f"HTTP {error.code}", f"the metadata service has no {path}"
        except (URLError, HTTPException, OSError, ValueError) as error:
            code, why = "no metadata", f"{self._url} does not answer ({getattr(error, 'reason', error)})"
        raise CloudError(Failure.DENIED, code, why, self._instead)

    def aws_session(self) -> "Metadata":
        """Opens a session: the metadata service with a token, which version 2 of AWS' service requires."""
        return self.with_token("X-aws-ec2-metadata-token")

    def with_token(self, header: str) -> "Metadata":
        """Returns the metadata service with a token in this header, fetched now and valid for 300 s."""
        token = self.text("/latest/api/token", method="PUT", headers={f"{header}-ttl-seconds": "300"})
        return Metadata(self._url, self._instead, {header: token})


_RENEWED_BEFORE: Final = 300.0
"""Seconds before the end of a key's life at which another one is fetched."""
HIDDEN: Final = "(hidden)"
_BROKEN: Final = (ConfigParserError, OSError, ValueError, TypeError, AttributeError, KeyError)
"""What SDKs raise where such a file is not as it should be."""


@frozen
class Keys:
    """What signs a request."""

    name: str = field(repr=False)
    """The key's name: AccessKeyId, or SecretId."""
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    """The token of a role; empty for a key that an operator has made."""
    expires: float = math.inf
    """The end of the key's life, in Unix time."""

    def hide(self, text: str) -> str:
        """The text without the keys."""
        for each in filter(None, (self.secret, self.token, self.name)):
            text = text.replace(each, HIDDEN)
        return text


@frozen
class Role:
    """Where the metadata service of an instance has the keys of its role."""

    path: str
    names: tuple[str, str, str]
    """Names of the document's fields: of the key's name, its secret, and the token."""
    expires: Callable[[Any], float]
    """Reads the time from the document."""
    header: str = ""
    """Name of the header with the token that the metadata service wants; empty: none."""

    def keys(self, own: Metadata) -> Keys:
        """Reads the keys of the role that are in force from the instance's metadata service. Raises CloudError if
        there are none.
        """
        own = own.with_token(self.header) if self.header else own
        role = next(iter(own.text(self.path).splitlines()), "")
        text = own.text(self.path + role)
        try:
            said = json.loads(text)
            name, secret, token = (str(said[each]) for each in self.names)
            return Keys(name, secret, token, self.expires(said))
        except (ValueError, KeyError, TypeError):
            why = f"role {role!r} of the instance has no keys"
            raise CloudError(Failure.DENIED, "no credentials", why) from None


class KeyChain:
    """The first place that has keys: the options of the network, flannel's variables, the SDK's places, the role."""

    def __init__(self, options: KeyOptions, sdk: Callable[[], Keys | None], role: Role, own: Metadata) -> None:
        self._given = _complete(options.key_id, options.key_secret) or _complete(
            os.environ.get("ACCESS_KEY_ID", ""), os.environ.get("ACCESS_KEY_SECRET", "")
        )
        self._sdk = sdk
        self._role = role
        self._own = own
        self._latest: Keys | None = None

    def keys(self) -> Keys:
        """Returns the keys to sign with now. Raises CloudError if there are none."""
        try:
            found = self._given or self._sdk()
        except _BROKEN as error:  # whose text may quote the file
            why = f"a file in which the SDK looks for keys cannot be read ({type(error).__name__})"
            cure = "correct it, or remove it to use the instance's role"
            raise CloudError(Failure.DENIED, "no credentials", why, cure) from None
        if found is None and self._latest is not None and self._latest.expires > time.time() + _RENEWED_BEFORE:
            return self._latest
        self._latest = found or self._role.keys(self._own)
        return self._latest

    def hide(self, text: str) -> str:
        """The text without the latest keys."""
        return self._latest.hide(text) if self._latest else text


def _complete(name: str, secret: str) -> Keys | None:
    """flannel wants both, or looks elsewhere."""
    return Keys(name, secret) if name and secret else None
