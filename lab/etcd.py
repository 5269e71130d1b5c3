"""Speaks to etcd through its JSON gateway, so that the lab needs no etcd client."""

import asyncio
import json
from base64 import b64encode
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from lab.netns import NetworkNamespace


class EtcdRefuses(Exception):
    """etcd answers, but not with success; the message has its words."""


async def put(namespace: NetworkNamespace, endpoint: str, key: str, value: str) -> None:
    """Puts it, from inside the namespace; tries again until etcd answers. Raises EtcdRefuses."""
    await _until_answered(namespace, endpoint, "/v3/kv/put", {"key": _encoded(key), "value": _encoded(value)})


async def until_answering(namespace: NetworkNamespace, endpoint: str) -> None:
    """Returns when etcd answers reads, which takes a leader. Raises EtcdRefuses."""
    await _until_answered(namespace, endpoint, "/v3/kv/range", {"key": _encoded("any")})


async def _until_answered(namespace: NetworkNamespace, endpoint: str, path: str, request: dict[str, str]) -> None:
    while True:
        with suppress(OSError, HTTPException):
            return await asyncio.to_thread(_post, namespace, endpoint, path, json.dumps(request))
        await asyncio.sleep(0.05)


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _post(namespace: NetworkNamespace, endpoint: str, path: str, body: str) -> None:
    connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=2)
    try:
        with namespace.inside():
            connection.connect()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    finally:
        connection.close()
    if response.status == 503:
        raise ConnectionError(text)  # it has no leader yet
    if response.status != 200:
        raise EtcdRefuses(f"etcd refuses {path}: {response.status} {text}")
