"""The engine as a Python object."""

from minisgl.llm.llm import LLM

__all__ = ["LLM"]
