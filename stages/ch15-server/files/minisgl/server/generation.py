"""The answers that one HTTP request asks for, from first token to last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minisgl.message import TokenizeMsg, UserReply
from minisgl.sampling_params import SamplingParams
from minisgl.server.errors import ApiError
from minisgl.server.frontend import FrontendManager, Replies
from minisgl.server.responses import FinishReason
from minisgl.server.stops import StopStrings

# What a request that ends like this, with nothing sent yet, is answered with.
_STATUS = {"refused": 400, "error": 500, "gone": 503}

Prompt = str | list[dict[str, str]] | list[int]
"""A text, the turns of a chat, or token ids."""


@dataclass
class Piece:
    """More of one answer.

    index: which answer: of prompt p (of those in the request) the k-th of n is
        number p * n + k.
    logprobs: of its tokens, as in `UserReply`.
    finish_reason: with the last piece: stop, length or error.
    error: what a client is told then.
    """

    index: int
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: ApiError | None = None

    @property
    def ended(self) -> FinishReason:
        """Why, of an answer that is whole."""
        assert self.finish_reason is not None
        return self.finish_reason

    @property
    def only_text(self) -> bool:
        """Whether it has some, and nothing else."""
        return bool(self.text) and not (self.logprobs or self.finish_reason)

    def joined(self, more: Piece) -> Piece:
        """This one and the next of the same answer."""
        text, logprobs = self.text + more.text, self.logprobs + more.logprobs
        return replace(more, text=text, logprobs=logprobs)


@dataclass
class Tokens:
    """What the request has cost so far; a prompt counts once, whatever n is."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class _Choice:
    """One answer in the making: replies in, pieces out."""

    def __init__(self, index: int, stops: Sequence[str]) -> None:
        self.index = index
        self.started = False
        self._stops = StopStrings(stops)
        self._received = self._shown = 0
        # Each with where in the text its token begins.
        self._logprobs: list[tuple[int, dict[str, Any]]] = []

    def take(self, reply: UserReply) -> Piece:
        """What a reply adds to the answer; its last one may end it early."""
        self.started = True
        if (status := _STATUS.get(reply.finish_reason or "")) is not None:
            error = ApiError(status, reply.error or "the engine failed")
            return Piece(self.index, finish_reason="error", error=error)
        self._logprobs += [(self._received, e) for e in reply.logprobs or ()]
        self._received += len(reply.incremental_output)
        text, stopped = self._stops.feed(reply.incremental_output)
        whole = reply.finished and not stopped
        text += self._stops.flush() if whole else ""
        self._shown += len(text)
        reason: FinishReason | None = None
        if stopped or reply.finished:
            length = not stopped and reply.finish_reason == "length"
            reason = "length" if length else "stop"
        return Piece(self.index, text, self._release(whole), reason)

    def _release(self, whole: bool) -> list[dict[str, Any]]:
        """Logprobs of the tokens whose text is shown, or of all that are left."""
        if not self._logprobs:
            return []
        count = sum(whole or at < self._shown for at, _ in self._logprobs)
        ready = [entry for _, entry in self._logprobs[:count]]
        del self._logprobs[:count]
        return ready


class Generation:
    """Runs n answers to each prompt and merges what comes of them.

    Of each prompt the first answer is asked for at once and the others when its
    first token is there: by then the prompt is in the prefix cache, and is not
    computed again. With a seed, the k-th answer is drawn with seed + k.
    """

    def __init__(
        self,
        frontend: FrontendManager,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        n: int = 1,
        stops: Sequence[str] = (),
    ) -> None:
        self.tokens = Tokens()
        self._frontend, self._params, self._n = frontend, params, n
        self._prompts, self._stops = prompts, stops
        self._replies: Replies = asyncio.Queue()
        self._choices: dict[int, _Choice] = {}  # by uid, while they run
        self._left = len(prompts) * n
        self._early: dict[int, Piece] = {}

    async def begin(self) -> None:
        """Ask, and wait for a first reply to every prompt.

        Raises:
            ApiError: 400, 500 or 503, if any of them fails.
        """
        for p in range(len(self._prompts)):
            await self._ask(p, 0)
        firsts = {*range(0, self._left, self._n)}
        while not firsts <= self._early.keys():
            piece = await self._receive(self._early)
            if piece is not None and piece.error is not None:
                raise piece.error

    async def pieces(self) -> AsyncIterator[Piece]:
        """All pieces, in the order of their coming; one with an error ends it.

        What has come of an answer meanwhile is one piece. So who is slow to
        send them sends fewer, and falls behind no further.
        """
        ready = self._early
        while True:
            for piece in ready.values():
                yield piece
                if piece.error is not None:
                    return
            if not self._left:
                return
            ready = {}
            while not ready or not self._replies.empty():
                last = await self._receive(ready)
                if last is not None and last.error is not None:
                    break

    def close(self) -> None:
        """Abort what still runs."""
        self._frontend.release(self._choices)
        self._choices.clear()

    async def _ask(self, p: int, k: int) -> None:
        params, uid = self._params, self._frontend.new_user(self._replies)
        if params.seed is not None and k > 0:
            seed = (params.seed + k + 2**63) % 2**64 - 2**63
            params = replace(params, seed=seed)
        self._choices[uid] = _Choice(p * self._n + k, self._stops)
        await self._frontend.send_one(
            TokenizeMsg(uid, self._prompts[p], params)
        )

    async def _receive(self, found: dict[int, Piece]) -> Piece | None:
        """Wait for a reply, and add what it brings to the pieces, by answer.

        Returns that, and None if nobody wants it any more.
        """
        reply = await self._replies.get()
        # After a stop string a few more tokens may be on their way.
        if (choice := self._choices.get(reply.uid)) is None:
            return None
        assert isinstance(reply, UserReply)
        piece = await self._take(choice, reply)
        before = found.pop(piece.index, None)  # the newest goes to the end
        found[piece.index] = before.joined(piece) if before else piece
        return piece

    async def _take(self, choice: _Choice, reply: UserReply) -> Piece:
        first, (p, k) = not choice.started, divmod(choice.index, self._n)
        self.tokens.completion += reply.completion_tokens
        if k == 0:
            self.tokens.prompt += reply.prompt_tokens or 0
            self.tokens.cached += reply.cached_tokens or 0
        piece = choice.take(reply)
        if piece.finish_reason is not None:
            del self._choices[reply.uid]
            self._left -= 1
            if reply.finished:
                del self._frontend.ack_map[reply.uid]
            else:
                self._frontend.release([reply.uid])
        if first and k == 0 and piece.error is None:
            for later in range(1, self._n):
                await self._ask(p, later)
        return piece
