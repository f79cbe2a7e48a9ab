"""What the parts of the engine say to one another."""

from minisgl.message.backend import (
    AbortBackendMsg,
    BaseBackendMsg,
    ExitMsg,
    UserMsg,
)
from minisgl.message.tokenizer import DetokenizeMsg

__all__ = [
    "AbortBackendMsg",
    "BaseBackendMsg",
    "DetokenizeMsg",
    "ExitMsg",
    "UserMsg",
]
