"""uvicorn, with a gate in front of the application and without its signals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from minisgl.server.errors import ApiError

LOADING = "the model is still being loaded; try again in a moment"
# Seconds that answers get to end once the server stops.
_DRAIN = 3


class Gate:
    """An application in front of another: it answers 503 while it is closed.

    closed: why; None lets requests through.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.closed: str | None = LOADING

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if self.closed is None or scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            answer = ApiError(503, self.closed).response({"retry-after": "2"})
            await answer(scope, receive, send)


class HttpServer(uvicorn.Server):
    """Serves an application until `should_exit` is set."""

    def __init__(self, app: ASGIApp, log_level: str) -> None:
        verbose = log_level == "debug"
        config = uvicorn.Config(
            app,
            log_level="debug" if verbose else "warning",
            access_log=verbose,
            timeout_graceful_shutdown=_DRAIN,
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to who runs the other processes too."""
        yield
