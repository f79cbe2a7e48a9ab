"""Pages about the server itself: its model, its health, its version."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from minisgl.server import openapi
from minisgl.server.args import version
from minisgl.server.errors import ApiError
from minisgl.server.frontend import FrontendManager
from minisgl.server.responses import Health, ModelCard, ModelList, Root, Version

PATIENCE = 4.0
"""Seconds in which a healthy engine says something."""

router = APIRouter()


def get_frontend(request: Request) -> FrontendManager:
    """What all handlers of an app share."""
    found: FrontendManager = request.app.state.frontend
    return found


def check_model(frontend: FrontendManager, name: str | None) -> str:
    """The name of the model here, if it is what was asked for.

    Raises:
        ApiError: 404, another one was.
    """
    here = frontend.config.model_name
    if name is not None and name.rstrip("/") != here:
        message = f"there is no model {name!r} here, only {here!r}"
        raise ApiError(404, message, "model", "model_not_found")
    return here


@router.get("/v1", responses=openapi.errors(401))
async def v1_root() -> Root:
    """Whether this is the right address."""
    return Root(status="ok")


@router.get("/v1/models", responses=openapi.errors(401))
async def available_models(request: Request) -> ModelList:
    """The model that is served."""
    return ModelList(data=[_card(get_frontend(request))])


@router.get("/v1/models/{name:path}", responses=openapi.errors(401, 404))
async def one_model(name: str, request: Request) -> ModelCard:
    """The same, if it has this name."""
    frontend = get_frontend(request)
    check_model(frontend, name)
    return _card(frontend)


def _card(frontend: FrontendManager) -> ModelCard:
    config = frontend.config
    return ModelCard(id=config.model_name, root=config.model_path)


@router.get("/health", responses=openapi.errors(503))
async def health(request: Request) -> Health:
    """Whether the engine answers, and how much it has to do."""
    frontend = get_frontend(request)
    asked = time.monotonic()
    try:
        return Health(status="ok", numbers=await frontend.status(PATIENCE))
    except TimeoutError:
        # A long step leaves no time to count, but its tokens come in the end.
        if frontend.last_heard > asked:
            return Health(status="busy", numbers={})
        raise ApiError(
            503,
            f"the engine has said nothing for {PATIENCE:g} s; if this lasts, "
            "read the server's log and restart it",
        ) from None


@router.get("/version")
async def show_version() -> Version:
    """The version of this server."""
    return Version(version=version())
