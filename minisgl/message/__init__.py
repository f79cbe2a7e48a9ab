"""What the processes of a server say to one another."""

from minisgl.message.backend import (
    SHUTTING_DOWN,
    AbortBackendMsg,
    BaseBackendMsg,
    BatchBackendMsg,
    ExitMsg,
    StatusBackendMsg,
    UserMsg,
)
from minisgl.message.frontend import (
    BaseFrontendMsg,
    BatchFrontendMsg,
    StatusReply,
    UserReply,
)
from minisgl.message.tokenizer import (
    AbortMsg,
    BaseTokenizerMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
    StatusMsg,
    StatusResultMsg,
    TokenizeMsg,
    TokenLogprob,
)

__all__ = [
    "SHUTTING_DOWN",
    "AbortBackendMsg",
    "AbortMsg",
    "BaseBackendMsg",
    "BaseFrontendMsg",
    "BaseTokenizerMsg",
    "BatchBackendMsg",
    "BatchFrontendMsg",
    "BatchTokenizerMsg",
    "DetokenizeMsg",
    "ExitMsg",
    "StatusBackendMsg",
    "StatusMsg",
    "StatusReply",
    "StatusResultMsg",
    "TokenLogprob",
    "TokenizeMsg",
    "UserMsg",
    "UserReply",
]
