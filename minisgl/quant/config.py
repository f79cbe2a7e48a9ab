"""How the weights of a model are quantised."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class QuantConfig:
    """The form of the linears' weights, in the engine and in the checkpoint.

    format: fp8, int8 or int4.
    group_size: weights of a row that share a scale; 0 if all do.
    group_rows: rows that share one in the checkpoint; 0 if all do. In the
        engine each row has its own.
    published: whether the checkpoint holds them so; else they are quantised
        while it is loaded.
    ignored: linears that are not quantised, by the names of the checkpoint;
        ``re:`` stands before what is a regular expression.
    """

    format: str
    group_size: int = 0
    group_rows: int = 1
    published: bool = False
    ignored: tuple[str, ...] = ()

    def covers(self, names: Sequence[str]) -> bool:
        """Whether a linear that is stored under these names is quantised.

        Raises:
            ValueError: some of them are to be left alone, and some are not.
        """
        left = [name for name in names if self._ignores(name)]
        if left and len(left) < len(names):
            raise ValueError(
                f"{left[0]} is not quantised, and others that are computed in "
                "one product with it are; such a checkpoint is not supported"
            )
        return not left

    def _ignores(self, name: str) -> bool:
        return any(
            re.match(entry.removeprefix("re:"), name) is not None
            if entry.startswith("re:")
            else name == entry or name.startswith(f"{entry}.")
            for entry in self.ignored
        )

    def check_width(self, what: str, width: int, size: int) -> None:
        """Raise ValueError if rows of so many weights cannot be cut in groups.

        size: the ranks over which a row is cut first.
        """
        # Of 4 bits, 32 are packed together.
        unit = 32 if self.format == "int4" else 1
        if size > 1 or self.format == "int4":
            unit = max(unit, self.group_size)
        if width % (size * unit) != 0:
            over = f" over {size} ranks and" if size > 1 else ""
            raise ValueError(
                f"the {width} inputs of {what} cannot be cut{over} into groups "
                f"of {unit}, as this checkpoint in {self.format} needs"
            )
