"""How likely the model found the tokens it was made to say."""

from __future__ import annotations

import torch

from minisgl.core import Batch
from minisgl.utils.device import to_device, to_host


class BatchLogprobs:
    """Log-probabilities of one step, of the requests that ask for them.

    They are the bare model's: of the logits as they come, before penalties, bias
    and temperature. The device works them out beside the sampling, and one copy
    brings them to the host.

    wanted: how many of the likeliest tokens, by row of the batch.
    """

    def __init__(self, wanted: dict[int, int], device: torch.device) -> None:
        self._place = {row: i for i, row in enumerate(wanted)}
        self._wanted = wanted
        self._rows = to_device([*wanted], torch.int64, device)
        self._on_host: torch.Tensor | None = None

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> BatchLogprobs | None:
        """What a batch about to run has to record; None if nobody asks."""
        asked = enumerate(req.sampling_params.logprobs for req in batch.reqs)
        wanted = {row: count for row, count in asked if count is not None}
        return cls(wanted, device) if wanted else None

    def record(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Work them out; on the host they are when the tokens are.

        logits: [B, vocab], as the model made them; tokens: int [B], those that
        were chosen. A row that has failed gives numbers without meaning.
        """
        picked = logits[self._rows].float()
        # Else what the likeliest have in common would cost them digits.
        picked = picked - picked.amax(-1, keepdim=True)
        chosen = tokens[self._rows].long().clamp(min=0).unsqueeze(1)
        most = min(max(self._wanted.values()), logits.shape[1])
        top = picked.topk(most, dim=-1)
        values = torch.cat([picked.gather(1, chosen), top.values], dim=1)
        values -= picked.logsumexp(-1, keepdim=True)
        # Floats hold ids up to 2**24: one copy carries both.
        packed = torch.cat([values, top.indices.float()], dim=1)
        self._on_host = to_host(packed)

    def read(self, row: int) -> tuple[float, list[int], list[float]] | None:
        """Of one row: the token's, ids of the likeliest, theirs.

        Call it when the step's event has happened. None: it was not asked for.
        """
        if row not in self._place:
            return None
        assert self._on_host is not None, "the step has not run"
        numbers = self._on_host[self._place[row]].tolist()
        most = len(numbers) // 2
        count = min(self._wanted[row], most)
        ids = [int(token) for token in numbers[1 + most :][:count]]
        return numbers[0], ids, numbers[1 : 1 + count]
