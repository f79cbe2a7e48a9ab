"""The application behind the one address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from minisgl.deploy.fleet import Fleet
from minisgl.deploy.forward import Forwarder
from minisgl.server.api_server import LARGEST_BODY
from minisgl.server.errors import ApiError, install_error_handlers
from minisgl.server.middleware import LimitBody, UnderPath

_METRICS = "each replica has its own /metrics; their addresses are at /health"


def create_router(
    fleet: Fleet, forwarder: Forwarder, root_path: str
) -> FastAPI:
    """An application that knows its replicas, and has them answer the rest.

    Who may ask for what is decided where it always was, in the replica.
    """

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        await forwarder.close()

    async def health(request: Request) -> Response:
        """Whether anybody can answer, and how each replica is."""
        if not any(replica.is_open for replica in fleet.replicas.values()):
            raise ApiError(503, "no replica is ready")
        shown = {name: r.show() for name, r in fleet.replicas.items()}
        return JSONResponse({"status": "ok", "replicas": shown})

    async def metrics(request: Request) -> Response:
        raise ApiError(404, _METRICS)

    app = FastAPI(
        openapi_url=None,  # that of a replica
        lifespan=life,
        middleware=[
            Middleware(UnderPath, path=root_path),
            Middleware(LimitBody, limit=LARGEST_BODY),
        ],
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/{path:path}", forwarder),
        ],
    )
    install_error_handlers(app)
    return app
