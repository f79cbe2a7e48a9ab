"""Requests in words to requests in tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from minisgl.message import TokenizeMsg
from minisgl.message.tokenizer import ChatPrompt
from minisgl.tokenizer.text import Tokenizer

TokenArray = npt.NDArray[np.int32]


class TokenizeManager:
    """Makes the prompts of requests; keeps nothing about them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def tokenize(
        self, msgs: list[TokenizeMsg]
    ) -> list[TokenArray | ValueError]:
        """For each message its tokens, int32 [n], or why it has none."""
        return [self._tokenize_one(msg) for msg in msgs]

    def _tokenize_one(self, msg: TokenizeMsg) -> TokenArray | ValueError:
        try:
            return np.array(self._ids(msg.text), dtype=np.int32)
        except ValueError as error:
            return error
        except Exception as error:
            # Whatever a client has sent, only its own request may fail.
            return ValueError(f"{type(error).__name__}: {error}")

    def _ids(self, text: Any) -> list[int]:
        if isinstance(text, ChatPrompt):
            functions = json.loads(text.functions or "[]")
            chat = self.tokenizer.apply_tool_template(text.turns, functions)
            return self.tokenizer.encode(chat, add_special_tokens=False)
        if isinstance(text, str):
            return self.tokenizer.encode(text)
        if not isinstance(text, list):
            raise ValueError(f"a prompt is no {type(text).__name__}")
        if any(isinstance(item, int) for item in text):  # tokens already
            if odd := [t for t in text if not _is_token(t)]:
                raise ValueError(f"{odd[0]!r} is no token id")
            return text
        chat = self.tokenizer.apply_chat_template(text)
        return self.tokenizer.encode(chat, add_special_tokens=False)


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
