"""The API of EC2 as a test or the lab calls it: unsigned, which moto takes."""

import re
from typing import Final
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener
from xml.etree import ElementTree

_NAMESPACE: Final = re.compile(r'\sxmlns="[^"]+"')
_SECONDS: Final = 60.0
_CREDENTIAL: Final = "AWS4-HMAC-SHA256 Credential=test/20260101/eu-central-1/ec2/aws4_request, SignedHeaders=host, "
_OPENER: Final = build_opener(ProxyHandler({}))


class Ec2:
    """An EC2 at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, action: str, **parameters: str) -> ElementTree.Element:
        """The answer of one call. Raises OSError."""
        body = urlencode({"Action": action, "Version": "2016-11-15", **parameters}).encode()
        request = Request(self.url, body, {"Authorization": f"{_CREDENTIAL}Signature=0"})  # noqa: S310
        with _OPENER.open(request, timeout=_SECONDS) as answer:
            return ElementTree.fromstring(_NAMESPACE.sub("", answer.read().decode()))  # noqa: S314

    def text(self, action: str, path: str, **parameters: str) -> str:
        """One value of the answer. Raises LookupError: it is not there."""
        found = self.call(action, **parameters).findtext(path)
        if found is None:
            raise LookupError(f"the answer of {action} has no {path}")
        return found
