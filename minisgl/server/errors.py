"""Every error as OpenAI's clients expect one: `{"error": {...}}`, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException


class ErrorInfo(BaseModel):
    """What went wrong, and in which field of the request."""

    message: str = Field(examples=["temperature: must be at least 0"])
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(examples=["temperature"])
    code: str | None = Field(examples=[None])


class ErrorResponse(BaseModel):
    """The body of every answer that is not a 200."""

    error: ErrorInfo


class ApiError(Exception):
    """An answer of status `status`, raised anywhere below a handler."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def info(self) -> ErrorInfo:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return ErrorInfo(
            message=str(self), type=kind, param=self.param, code=self.code
        )

    def response(
        self, headers: Mapping[str, str] | None = None
    ) -> JSONResponse:
        body = ErrorResponse(error=self.info).model_dump()
        return JSONResponse(body, self.status, headers)


def install_error_handlers(app: FastAPI) -> None:
    """Let every error of the app leave in this shape."""
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(Exception, _answer_fault)


async def _answer_api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error.response()


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses by itself: routes, methods, bodies."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    known = {404: f"there is no {path} here", 405: f"no {method} at {path}"}
    message = known.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message).response(error.headers)


async def _answer_fault(_: Request, error: Exception) -> JSONResponse:
    """A mistake of ours; the log has the traceback, the client need not."""
    # uvicorn drops the connection: told so, a client asks on another one.
    headers = {"connection": "close"}
    return ApiError(500, "the server failed; see its log").response(headers)


async def _answer_validation(
    request: Request, error: Exception
) -> JSONResponse:
    """A body that is no JSON, or whose fields are not what they should be."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not JSON: {reason}").response()
    sent = request.headers.get("content-type", "")
    if "json" not in sent and first["loc"] == ("body",):
        message = "send JSON with the header content-type: application/json"
        return ApiError(400, message).response()
    return _explain(first).response()


def _explain(first: Mapping[str, Any]) -> ApiError:
    """What is wrong, and in which field."""
    name = _name(first["loc"])
    reason = str(first["msg"]).removeprefix("Value error, ")
    return ApiError(400, f"{name or 'body'}: {reason}", name)


def _name(loc: Sequence[int | str]) -> str | None:
    """`messages[0].content` of a place in the body; None for the whole."""
    name = ""
    for part in loc[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() or part.isdecimal():
            # Any other part is the name of one of a field's types.
            name += f".{part}"
    return name.removeprefix(".") or None
