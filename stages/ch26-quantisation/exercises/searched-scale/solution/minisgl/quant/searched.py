"""4 bits with scales that are looked for, instead of computed from one weight."""

from __future__ import annotations

import torch

from minisgl.quant.integers import Int4Method


class SearchedInt4(Int4Method):
    """Gives each group that scale, of several, with the least squared error.

    shares: of the scale that `Int4Method` takes. With less than 1 the largest
        weight is cut off, and the others lie closer to a value.
    """

    shares = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)

    def _scale(self, groups: torch.Tensor) -> torch.Tensor:
        """float32 [out, groups, n] -> [out, groups, 1]; 0 where all are 0.

        Every group chooses for itself; between equals the larger share counts.
        """
        full = super()._scale(groups)
        best = full
        least = self._errors(groups, full)
        for share in self.shares:
            scale = share * full
            errors = self._errors(groups, scale)
            better = errors < least
            best = torch.where(better, scale, best)
            least = torch.where(better, errors, least)
        return best

    def _errors(
        self, groups: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        """The sum of squares by which each group is off: [out, groups, 1].

        Where the scale is 0 the group is zeros, and so is its error.
        """
        safe = torch.where(scale == 0, 1.0, scale)
        meant = self._round(groups / safe) * safe
        return (meant - groups).square().sum(2, keepdim=True)
