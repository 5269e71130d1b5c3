"""Speaks to etcd through its JSON gateway, so that the lab needs no etcd client."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from lab.netns import NetworkNamespace


class EtcdRefuses(Exception):
    """etcd answers, but not with success; the message has its words."""


async def put(namespace: NetworkNamespace, endpoint: str, key: str, value: str) -> None:
    """Puts it, from inside the namespace; tries again until etcd answers. Raises EtcdRefuses."""
    await ask(namespace, endpoint, "/v3/kv/put", {"key": encoded(key), "value": encoded(value)})


async def until_answering(namespace: NetworkNamespace, endpoint: str) -> None:
    """Returns when etcd answers reads, which takes a leader. Raises EtcdRefuses."""
    await ask(namespace, endpoint, "/v3/kv/range", {"key": encoded("any")})


async def ask(namespace: NetworkNamespace, endpoint: str, path: str, request: Mapping[str, object]) -> dict[str, Any]:
    """What etcd says to a request of its API; tries again until it answers. Raises EtcdRefuses."""
    while True:
        with suppress(OSError, HTTPException):
            answer = await asyncio.to_thread(_post, namespace, endpoint, path, json.dumps(request))
            return dict(json.loads(answer))
        await asyncio.sleep(0.05)


def encoded(text: str) -> str:
    """A key or value, as requests have it."""
    return b64encode(text.encode()).decode()


def _post(namespace: NetworkNamespace, endpoint: str, path: str, body: str) -> str:
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
    return text
