"""A request that is several tokens ahead: guesses that one step checks."""

from __future__ import annotations

import torch

from minisgl.core import Req

__all__ = ["DraftReq"]


class DraftReq(Req):
    """A request whose next tokens somebody has guessed.

    From `propose` to `accept` its counters include the guesses:

        cached_len < device_len == len(input_ids) <= max_device_len

    num_drafts: how many of the last tokens are guesses.
    """

    num_drafts: int = 0

    def propose(self, drafts: torch.Tensor) -> None:
        """Append guesses, int32 [k] on the CPU, to what the next step computes.

        The step makes one token more than it checks. Guesses for which the
        answer then has no room are left out.
        """
        self.num_drafts = min(len(drafts), self.remain_len - 1)
        kept = drafts[: self.num_drafts]
        self.input_ids = torch.cat([self.input_ids, kept])
        self.device_len += self.num_drafts

    def accept(self, choices: torch.Tensor) -> torch.Tensor:
        """Account for the step that computed the guesses.

        choices: int32 [num_drafts + 1] on the CPU; what the model would say
            after the last token that is no guess, and after each guess.
        Returns the new tokens, from 1 to num_drafts + 1: the guesses up to the
        first wrong one, then the model's own choice. Of what was computed, only
        the keys and values of right tokens count as cached.
        """
        known = self.device_len - self.num_drafts
        right = self.input_ids[known:] == choices[:-1]
        accepted = int(right.int().cumprod(0).sum())
        self.cached_len = known + accepted
        self.device_len = self.cached_len + 1
        new = choices[: accepted + 1]
        self.input_ids = torch.cat([self.input_ids[:known], new])
        self.num_drafts = 0
        return new
