"""What happens to a request before any handler sees it."""

from __future__ import annotations

from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minisgl.server.errors import ApiError


class UnderPath:
    """Serves under a path, whether or not a proxy has taken it off already."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app, self._path = app, path

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        # Starlette looks for routes in what comes after it.
        scope["root_path"] = self._path
        await self._app(scope, receive, send)


class RequireKey:
    """Lets requests to /v1 and /generate pass only with the right key.

    The rest stays open, for /health is asked by machines that have no key.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if scope["type"] == "http" and _is_guarded(scope):
            told = Headers(scope=scope).get("authorization", "")
            scheme, _, key = told.partition(" ")
            # In a time that does not tell how much of it is right.
            right = compare_digest(key.encode("latin-1"), self._key)
            if not right or scheme.lower() != "bearer":
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
        why = f"the body has more than {left} bytes"

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:  # the one kind of error that FastAPI lets through
                raise HTTPException(413, why)
            return message

        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        told = Headers(scope=scope).get("content-length", "")
        if told.isdecimal() and int(told) > self._limit:
            return await ApiError(413, why).response()(scope, receive, send)
        return await self._app(scope, limited, send)
