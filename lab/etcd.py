"""Writes a key to etcd through its JSON gateway, so that the lab needs no etcd client."""

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
    body = json.dumps({"key": b64encode(key.encode()).decode(), "value": b64encode(value.encode()).decode()})
    while True:
        with suppress(OSError, HTTPException):
            return await asyncio.to_thread(_post, namespace, endpoint, "/v3/kv/put", body)
        await asyncio.sleep(0.05)


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
        raise EtcdRefuses(f"etcd refuses to put: {response.status} {text}")
