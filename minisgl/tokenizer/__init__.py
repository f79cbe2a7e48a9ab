"""The processes that turn text into tokens and tokens into text."""

from minisgl.tokenizer.server import tokenize_worker

__all__ = ["tokenize_worker"]
