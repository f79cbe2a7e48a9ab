"""Tokens to vectors at the bottom of a model, vectors to logits at the top."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minisgl.core import get_global_ctx
from minisgl.distributed import DistributedCommunicator, get_tp_info
from minisgl.kernel import indexing
from minisgl.layers.base import BaseOP
from minisgl.layers.linear import Multiply
from minisgl.utils import div_ceil


class VocabParallelEmbedding(BaseOP):
    """A table with one row a token of the vocabulary.

    Every rank has equally many rows, so that the last one may have some that
    stand for no token.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        info = get_tp_info()
        rows = div_ceil(num_embeddings, info.size)
        self.weight = torch.empty(rows, embedding_dim)
        self._init_split(num_embeddings)

    def _init_split(self, num_embeddings: int) -> None:
        info = get_tp_info()
        self._num_embeddings, self._size = num_embeddings, info.size
        self._rows = div_ceil(num_embeddings, info.size)
        self._start = info.rank * self._rows
        self._comm = DistributedCommunicator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """int [T] -> [T, embedding_dim].

        A rank gives zeros for the tokens of others, and the sum is what the
        one that has a token gives.
        """
        if self._size == 1:
            return indexing(self.weight, x)
        ids = self._start, self._start + self._rows
        found = indexing(self.weight, x, vocab_range=ids)
        return self._comm.all_reduce(found)


class ParallelLMHead(VocabParallelEmbedding):
    """The logits of every token: x W^T, where W may be the embedding's table."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        tie_word_embeddings: bool = False,
        tied_embedding: VocabParallelEmbedding | None = None,
    ) -> None:
        if tie_word_embeddings and tied_embedding is None:
            raise ValueError("a tied head needs its tied_embedding")
        self._tied = tied_embedding if tie_word_embeddings else None
        if self._tied is None:
            super().__init__(num_embeddings, embedding_dim)
        else:
            self._init_split(num_embeddings)
        self.bias = torch.empty(self._rows) if bias else None
        self._multiply: Multiply = F.linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, embedding_dim] -> [n, num_embeddings], on every rank.

        n: requests, of which only the last token is followed by one to sample;
            or all T tokens, where drafts are checked.
        """
        batch = get_global_ctx().batch
        if not batch.attn_metadata.every_token:
            x = x[batch.attn_metadata.get_last_indices(batch.size)]
        table = self if self._tied is None else self._tied
        logits = self._multiply(x, table.weight, self.bias)
        if self._size == 1:
            return logits
        parts = self._comm.all_gather(logits).view(self._size, *logits.shape)
        # Side by side, then without the rows that stand for no token.
        return parts.transpose(0, 1).flatten(1)[:, : self._num_embeddings]
