"""The routes that ask the engine, and the app that holds all routes."""

from __future__ import annotations

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
from minisgl.server.errors import install_error_handlers
from minisgl.server.fields import MOST
from minisgl.server.frontend import FrontendManager
from minisgl.server.info import (
    available_models,
    check_model,
    get_frontend,
    v1_root,
)
from minisgl.server.info import router as info_router
from minisgl.server.metrics import router as metrics_router
from minisgl.server.middleware import LimitBody, RequireKey, UnderPath
from minisgl.server.observer import MeteredGeneration, Observer
from minisgl.server.protocol import GenerateRequest, OpenAICompletionRequest
from minisgl.server.respond import respond
from minisgl.server.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    GenerateAnswer,
    ModelCard,
    ModelList,
    TextCompletion,
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
    "available_models",
    "connect",
    "create_app",
    "v1_root",
]

LARGEST_BODY = 4 * 2**20
"""In bytes: more text than any context holds."""

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
    app.state.observer = Observer.create(manager.config)
    app.include_router(router)
    app.include_router(info_router)
    app.include_router(metrics_router)
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


@router.post(
    "/generate",
    responses=openapi.or_stream(GenerateAnswer, GenerateAnswer)
    | openapi.errors(400, 401, 413, 500, 503),
)
async def generate(req: GenerateRequest, request: Request) -> Response:
    """Go on from a text, greedily: the smallest way to use the engine."""
    params = SamplingParams(
        max_tokens=min(req.max_tokens, MOST), ignore_eos=req.ignore_eos
    )
    generation = MeteredGeneration(
        request.app.state.observer, get_frontend(request), [req.prompt], params
    )
    return await respond(request, generation, GenerateWriter(), req.stream)


@router.post(
    "/v1/chat/completions",
    responses=openapi.or_stream(ChatCompletion, ChatCompletionChunk)
    | openapi.errors(400, 401, 404, 413, 500, 503),
)
async def v1_chat_completions(
    req: ChatCompletionRequest, request: Request
) -> Response:
    """The assistant's next turn in a conversation."""
    frontend = get_frontend(request)
    model = check_model(frontend, req.model)
    generation = MeteredGeneration(
        request.app.state.observer,
        frontend,
        [req.prompt],
        req.sampling_params(req.limit, req.count_logprobs),
        req.n,
        req.stops,
    )
    writer = ChatWriter(model, req)
    return await respond(request, generation, writer, req.stream)


@router.post(
    "/v1/completions",
    responses=openapi.or_stream(TextCompletion, TextCompletion)
    | openapi.errors(400, 401, 404, 413, 500, 503),
)
async def v1_completions(
    req: OpenAICompletionRequest, request: Request
) -> Response:
    """How one text, or each of several, goes on."""
    frontend = get_frontend(request)
    model = check_model(frontend, req.model)
    generation = MeteredGeneration(
        request.app.state.observer,
        frontend,
        req.prompts,
        req.sampling_params(req.max_tokens, req.logprobs),
        req.n,
        req.stops,
    )
    writer = TextWriter(model, req)
    return await respond(request, generation, writer, req.stream)
