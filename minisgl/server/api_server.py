"""The routes of the server, and the app that holds them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from minisgl.message import BaseFrontendMsg, BaseTokenizerMsg
from minisgl.sampling_params import SamplingParams
from minisgl.server import openapi
from minisgl.server.args import version
from minisgl.server.chat import ChatWriter
from minisgl.server.chat_request import ChatCompletionRequest, Message
from minisgl.server.completions import GenerateWriter, TextWriter
from minisgl.server.errors import ApiError, install_error_handlers
from minisgl.server.fields import MOST
from minisgl.server.frontend import FrontendManager
from minisgl.server.generation import Generation
from minisgl.server.middleware import LimitBody, RequireKey, UnderPath
from minisgl.server.protocol import GenerateRequest, OpenAICompletionRequest
from minisgl.server.respond import respond
from minisgl.server.responses import (
    ChatCompletion,
    GenerateAnswer,
    Health,
    ModelCard,
    ModelList,
    Root,
    TextCompletion,
    Version,
)
from minisgl.utils import ZmqAsyncPullQueue, ZmqAsyncPushQueue

if TYPE_CHECKING:
    from minisgl.server.args import ServerArgs

__all__ = [
    "FrontendManager",
    "GenerateRequest",
    "Message",
    "ModelCard",
    "ModelList",
    "OpenAICompletionRequest",
    "connect",
    "create_app",
]

LARGEST_BODY = 16 * 2**20
"""In bytes: more text than any context holds."""

PATIENCE = 4.0
"""Seconds in which a healthy engine says something."""

router = APIRouter()


def connect(config: ServerArgs) -> FrontendManager:
    """This process's end of the queues."""
    return FrontendManager(
        config,
        ZmqAsyncPushQueue(
            config.zmq_tokenizer_addr,
            create=config.frontend_create_tokenizer_link,
            encoder=BaseTokenizerMsg.encoder,
        ),
        ZmqAsyncPullQueue(
            config.zmq_frontend_addr,
            create=True,
            decoder=BaseFrontendMsg.decoder,
        ),
    )


def create_app(manager: FrontendManager) -> FastAPI:
    """The app that answers clients through `manager`."""
    app = FastAPI(
        title="mini-sglang by hand",
        version=version(),
        redirect_slashes=False,
        middleware=_middleware(manager.config),
    )
    app.state.frontend = manager
    app.include_router(router)
    install_error_handlers(app)
    openapi.describe(app, with_key=manager.config.api_key is not None)
    return app


def _middleware(config: ServerArgs) -> list[Middleware]:
    """What a request passes, outermost first."""
    found = [Middleware(UnderPath, path=config.root_path)]
    if config.cors_origins:  # before the key: a browser must see a 401, too
        cors = Middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
        found.append(cors)
    if config.api_key is not None:
        found.append(Middleware(RequireKey, key=config.api_key))
    return [*found, Middleware(LimitBody, limit=LARGEST_BODY)]


def _frontend(request: Request) -> FrontendManager:
    """What all handlers of an app share."""
    found: FrontendManager = request.app.state.frontend
    return found


def _check_model(frontend: FrontendManager, name: str | None) -> str:
    """The name of the model here, if it is what was asked for.

    Raises:
        ApiError: 404, another one was.
    """
    here = frontend.config.model_name
    if name is not None and name.rstrip("/") != here:
        message = f"there is no model {name!r} here, only {here!r}"
        raise ApiError(404, message, "model", "model_not_found")
    return here


@router.post(
    "/generate",
    responses=openapi.or_stream(GenerateAnswer)
    | openapi.errors(400, 401, 413, 500, 503),
)
async def generate(req: GenerateRequest, request: Request) -> Response:
    """Go on from a text, greedily: the smallest way to use the engine."""
    params = SamplingParams(
        max_tokens=min(req.max_tokens, MOST), ignore_eos=req.ignore_eos
    )
    generation = Generation(_frontend(request), [req.prompt], params)
    return await respond(request, generation, GenerateWriter(), req.stream)


@router.get("/v1", responses=openapi.errors(401))
async def v1_root() -> Root:
    """Whether this is the right address."""
    return Root(status="ok")


@router.post(
    "/v1/chat/completions",
    responses=openapi.or_stream(ChatCompletion)
    | openapi.errors(400, 401, 404, 413, 500, 503),
)
async def v1_chat_completions(
    req: ChatCompletionRequest, request: Request
) -> Response:
    """The assistant's next turn in a conversation."""
    frontend = _frontend(request)
    model = _check_model(frontend, req.model)
    generation = Generation(
        frontend,
        [[message.turn() for message in req.messages]],
        req.sampling_params(req.limit, req.count_logprobs),
        req.n,
        req.stops,
    )
    writer = ChatWriter(model, req)
    return await respond(request, generation, writer, req.stream)


@router.post(
    "/v1/completions",
    responses=openapi.or_stream(TextCompletion)
    | openapi.errors(400, 401, 404, 413, 500, 503),
)
async def v1_completions(
    req: OpenAICompletionRequest, request: Request
) -> Response:
    """How one text, or each of several, goes on."""
    frontend = _frontend(request)
    model = _check_model(frontend, req.model)
    generation = Generation(
        frontend,
        req.prompts,
        req.sampling_params(req.max_tokens, req.logprobs),
        req.n,
        req.stops,
    )
    writer = TextWriter(model, req)
    return await respond(request, generation, writer, req.stream)


@router.get("/v1/models", responses=openapi.errors(401))
async def available_models(request: Request) -> ModelList:
    """The model that is served."""
    return ModelList(data=[_card(_frontend(request))])


@router.get("/v1/models/{name:path}", responses=openapi.errors(401, 404))
async def one_model(name: str, request: Request) -> ModelCard:
    """The same, if it has this name."""
    frontend = _frontend(request)
    _check_model(frontend, name)
    return _card(frontend)


def _card(frontend: FrontendManager) -> ModelCard:
    config = frontend.config
    return ModelCard(id=config.model_name, root=config.model_path)


@router.get("/health", responses=openapi.errors(503))
async def health(request: Request) -> Health:
    """Whether the engine answers, and how much it has to do."""
    frontend = _frontend(request)
    asked = time.monotonic()
    try:
        return Health(status="ok", numbers=await frontend.status(PATIENCE))
    except TimeoutError:
        # A long step leaves no time to count, but its tokens come in the end.
        if frontend.last_heard > asked:
            return Health(status="busy", numbers={})
        raise ApiError(
            503, f"the engine has said nothing for {PATIENCE:g} s"
        ) from None


@router.get("/version")
async def show_version() -> Version:
    """The version of this server."""
    return Version(version=version())
