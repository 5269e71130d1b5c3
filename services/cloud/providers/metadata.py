"""The metadata service of an instance: plain HTTP, from the instance alone."""

from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from flannelette.services.cloud.routes import CloudError, Failure

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
