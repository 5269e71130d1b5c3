"""Our login at etcd: made when it is first needed, and anew when etcd does not accept its token any more."""

import asyncio
from typing import Final

import grpc.aio

from services.lease.stores.etcd.members import Member
from services.lease.stores.etcd.messages import rpc
from services.lease.stores.etcd.metrics import REQUESTS
from services.lease.stores.etcd.settings import EtcdSettings

_NOT_NEEDED: Final = "authentication is not enabled"


class Login:
    """One token for all calls. etcd computes long on a password, so nobody logs in who need not."""

    def __init__(self, settings: EtcdSettings, seconds: float) -> None:
        self._settings = settings
        self._seconds = seconds
        self._token = ""
        self._one_at_a_time = asyncio.Lock()

    @property
    def has_user(self) -> bool:
        """Whether there is somebody to log in."""
        return bool(self._settings.username)

    async def token(self, member: Member) -> str:
        """The token to send; empty where none is needed. Raises AioRpcError."""
        if not self.has_user:
            return ""
        async with self._one_at_a_time:
            if not self._token:
                request = rpc.AuthenticateRequest(name=self._settings.username, password=self._settings.password)
                try:
                    response = await member.calls["authenticate"](request, timeout=self._seconds)
                except grpc.aio.AioRpcError as error:
                    REQUESTS.labels("authenticate", error.code().name).inc()
                    if _NOT_NEEDED in (error.details() or ""):
                        return ""
                    raise
                REQUESTS.labels("authenticate", "OK").inc()
                self._token = response.token
            return self._token

    def refused(self, token: str) -> None:
        """Forgets this token, which was not accepted. One that was made since then stays."""
        if token == self._token:
            self._token = ""
