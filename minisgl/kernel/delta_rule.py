"""The gated delta rule and the short convolution before it, in plain torch.

A head has a state S [k_dim, v_dim], a memory of values by keys. A token first
lets it fade by exp(g), then reads what it holds for the key, and writes the
share beta of what is missing there:

    S <- exp(g) S
    S <- S + k (beta (v - S^T k))^T
    out = S^T q

This is Gated DeltaNet (Yang et al., arXiv:2412.06464).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNK = 64
"""Tokens that the chunked form takes at once."""


def delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of every row: the rule as it stands above.

    q, k: [B, H, k_dim]; v: [B, H, v_dim]; g, beta: [B, H]; state: [B, H, k_dim,
    v_dim]; all float32. Returns out, shaped like v, and the states after it.
    """
    state = state * g.exp()[..., None, None]
    held = torch.einsum("bhkv,bhk->bhv", state, k)
    missing = (v - held) * beta.unsqueeze(-1)
    state = state + k.unsqueeze(-1) * missing.unsqueeze(-2)
    return torch.einsum("bhkv,bhk->bhv", state, q), state


def delta_chunks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """T tokens of one sequence, CHUNK of them at a time.

    q, k: [T, H, k_dim]; v: [T, H, v_dim]; g, beta: [T, H]; state: [H, k_dim,
    v_dim]; all float32. Returns out, shaped like v, and the state after it.
    """
    q, k, v, g, beta = (x.transpose(0, 1) for x in (q, k, v, g, beta))
    outs = []
    for start in range(0, q.shape[1], CHUNK):
        now = (slice(None), slice(start, start + CHUNK))
        out, state = _chunk(q[now], k[now], v[now], g[now], beta[now], state)
        outs.append(out)
    return torch.cat(outs, 1).transpose(0, 1), state


def _chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `delta_chunks`, heads first, of few tokens.

    With G_t the sum of g up to t, and d_t what token t writes, the state after
    t is exp(G_t) S + sum over i <= t of exp(G_t - G_i) k_i d_i^T. Put into the
    rule, this makes a triangular system for all d at once:

        d_t + beta_t sum over i < t of exp(G_t - G_i) (k_t . k_i) d_i
            = beta_t (v_t - exp(G_t) S^T k_t)
    """
    total = g.cumsum(-1)
    size = total.shape[-1]
    upper = torch.ones(size, size, dtype=torch.bool, device=g.device).triu(1)
    apart = total.unsqueeze(-1) - total.unsqueeze(-2)
    # Masked before exp: above the diagonal it could overflow.
    fade = apart.masked_fill(upper, -torch.inf).exp()
    faded = total.exp().unsqueeze(-1)
    share = beta.unsqueeze(-1)
    system = share * fade * (k @ k.transpose(-1, -2))
    right = share * (v - faded * (k @ state))
    # The diagonal is taken for ones, whatever stands there.
    written = torch.linalg.solve_triangular(
        system, right, upper=False, unitriangular=True
    )
    seen = fade * (q @ k.transpose(-1, -2))
    out = faded * (q @ state) + seen @ written
    left = fade[..., -1, :].unsqueeze(-1)
    state = faded[..., -1:, :] * state + (left * k).transpose(-1, -2) @ written
    return out, state


def conv_step(
    x: torch.Tensor, weight: torch.Tensor, past: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of every row through the convolution, and silu.

    x: [B, C]. weight: [C, W]. past: [B, C, W - 1], the tokens before it.
    Returns [B, C] and what the past is for the next token.
    """
    window = torch.cat([past, x.unsqueeze(-1)], -1)
    return F.silu((window * weight).sum(-1)), window[..., 1:]


def conv_tokens(
    x: torch.Tensor, weight: torch.Tensor, past: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """T tokens of one sequence: x [T, C]; past [C, W - 1]; see `conv_step`."""
    seen = torch.cat([past, x.T], -1)
    out = F.conv1d(
        seen.unsqueeze(0), weight.unsqueeze(1), groups=len(weight)
    ).squeeze(0)
    return F.silu(out).T, seen[:, len(x) :]
