"""Tokens to vectors at the bottom of a model, vectors to logits at the top."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minisgl.core import get_global_ctx
from minisgl.layers.base import BaseOP
from minisgl.layers.linear import Multiply


class VocabParallelEmbedding(BaseOP):
    """A table with one row a token of the vocabulary."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        self.weight = torch.empty(num_embeddings, embedding_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """int [T] -> [T, embedding_dim]."""
        return F.embedding(x, self.weight)


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
        self.bias = torch.empty(num_embeddings) if bias else None
        self._multiply: Multiply = F.linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, embedding_dim] -> [requests, num_embeddings].

        Only the last token of each request is followed by one to sample.
        """
        batch = get_global_ctx().batch
        x = x[batch.attn_metadata.get_last_indices(batch.size)]
        table = self if self._tied is None else self._tied
        return self._multiply(x, table.weight, self.bias)
