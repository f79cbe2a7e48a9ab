"""What happens to a request before any handler sees it."""

from __future__ import annotations

from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minisgl.server.errors import ApiError


class RequireKey:
    """Lets requests to /v1 and /generate pass only with the right key.

    The rest stays open, for /health is asked by machines that have no key.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if scope["type"] == "http" and _is_guarded(scope):
            given = Headers(scope=scope).get("authorization", "")
            # In time that does not tell how much of it was right.
            if not compare_digest(given.encode(), self._expected):
                refusal = ApiError(
                    401,
                    "wrong key; send the header Authorization: Bearer KEY",
                    code="invalid_api_key",
                ).response({"WWW-Authenticate": "Bearer"})
                return await refusal(scope, receive, send)
        return await self._app(scope, receive, send)


def _is_guarded(scope: Scope) -> bool:
    path, root = scope["path"], scope.get("root_path", "")
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    first = path.strip("/").split("/")[0]
    return first in ("v1", "generate")


class LimitBody:
    """Refuses a body of more than `limit` bytes before it fills the memory."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        left = self._limit
        refusal = ApiError(413, f"the body has more than {left} bytes")

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise refusal
            return message

        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        told = Headers(scope=scope).get("content-length", "")
        if told.isdecimal() and int(told) > self._limit:
            return await refusal.response()(scope, receive, send)
        return await self._app(scope, limited, send)
