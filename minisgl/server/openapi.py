"""What the page at /docs and generators of clients are told."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from minisgl.server.errors import ErrorResponse
from minisgl.server.responses import ChatCompletionChunk

Responses = dict[int | str, dict[str, Any]]

_REF = "#/components/schemas/{model}"

_WHY = {
    400: "The request is wrong; `param` names the field.",
    401: "The key is missing or wrong.",
    404: "There is no such model.",
    413: "The body is too large.",
    500: "The engine failed on this request.",
    503: "The engine does not answer.",
}


def errors(*statuses: int) -> Responses:
    """Documents these statuses, which all have a body of one shape."""
    return {
        status: {"model": ErrorResponse, "description": _WHY[status]}
        for status in statuses
    }


def or_stream(whole: type[BaseModel], chunk: type[BaseModel]) -> Responses:
    """Documents that a 200 is one body, or a stream of events with chunks."""
    data = {
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": _REF.format(model=chunk.__name__)},
    }
    event = {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {"type": "string", "anyOf": [data, {"const": "[DONE]"}]}
        },
    }
    return {
        200: {
            "model": whole,
            "description": "A JSON body, or events if `stream` is true.",
            "content": {"text/event-stream": {"itemSchema": event}},
        }
    }


def describe(app: FastAPI, with_key: bool) -> None:
    """Make the app's schema say what it does."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app, with_key)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _schema(app: FastAPI, with_key: bool) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        servers=app.servers,
    )
    for methods in schema["paths"].values():
        for operation in methods.values():
            # FastAPI answers so by itself; here such errors are a 400.
            operation["responses"].pop("422", None)
            if with_key and "401" in operation["responses"]:
                operation["security"] = [{"key": []}]
    parts = schema["components"]
    parts["schemas"].pop("HTTPValidationError", None)
    parts["schemas"].pop("ValidationError", None)
    # FastAPI does not see what the events of a stream hold.
    _, found = models_json_schema(
        [(ChatCompletionChunk, "serialization")], ref_template=_REF
    )
    parts["schemas"] |= found["$defs"]
    if with_key:
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return schema
