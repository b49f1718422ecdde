"""How much of its weights a block may lose: what the rules leave open is bounded here.

Rules say that weights lie on the right levels of a block's grid, whatever its scales are. Scales that are nonsense
would pass: a step of zero puts every weight on its nearest level, zero. So the squared error of every block, and of
every tensor, is compared with that of plain rounding: for a grid of n levels between plus and minus the block's
largest magnitude, a twelfth of the squared step per weight; for a code book, a share of its energy that is usual.

Where a scale may differ from the one that chose the levels (rule "rescaled"), rows could be scaled unnoticed within
that budget. So there, scales may not lean to one side: the product of a block's values and its errors is about zero on
average over a row, and over a tensor, up to `lean` times the values' energy. More than seven of its own standard
deviations beyond that is too much; honest rows stay below four.

Limits of error are multiples of that of plain rounding. They lie above the largest ones found among quantizations by
llama.cpp of normal and heavy-tailed weights with importances that spread log-normally (sigma 3), with some columns ten
thousand times as important as the rest, and with every seventh column of no importance at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Budget:
    """block, tensor   multiples of the error of plain rounding that are the most a block, or a tensor, may have
    levels          of the grid; 0 for a code book
    share           of a code book: the usual squared error over the squared weights
    reach           the largest multiple of the stored 16-bit scale, which itself may be off by 2^-25 near zero
    lean            by how much scales may be too large or too small on average; 0 where rules fix them
    """

    block: float
    tensor: float
    levels: int = 0
    share: float = 0.0
    reach: float = 0.0
    lean: float = 0.0

    def plain(self, weights: Floats) -> npt.NDArray[np.float64]:
        """The squared error of plain rounding, summed over each block of `weights` [n, size]: [n]."""
        size = weights.shape[1]
        if not self.levels:
            return self.share * energy(weights)
        step = np.abs(weights).max(axis=1).astype(np.float64) * (2 / self.levels)
        error: npt.NDArray[np.float64] = step * step * (size / 12)
        return error

    @property
    def slack(self) -> float:
        """What may be lost on top, per weight, because the scale is too small for 16 bits."""
        return (self.reach * 2.0**-24) ** 2


def energy(weights: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Sums of squares by row."""
    sums: npt.NDArray[np.float64] = np.einsum("ij,ij->i", weights, weights, dtype=np.float64)
    return sums


BUDGETS: dict[str, Budget] = {
    "Q4_0": Budget(block=80, tensor=8, levels=16, reach=8, lean=0.025),
    "Q4_1": Budget(block=250, tensor=8, levels=16, reach=16, lean=0.025),
    "Q5_0": Budget(block=250, tensor=8, levels=32, reach=16, lean=0.025),
    "Q5_1": Budget(block=250, tensor=8, levels=32, reach=32, lean=0.025),
    "Q8_0": Budget(block=6, tensor=3, levels=255, reach=127),
    "Q2_K": Budget(block=3, tensor=5, levels=4, reach=60),
    "Q3_K": Budget(block=4, tensor=5, levels=8, reach=128),
    "Q4_K": Budget(block=16, tensor=5, levels=16, reach=1008),
    "Q5_K": Budget(block=24, tensor=5, levels=32, reach=2016),
    "Q6_K": Budget(block=40, tensor=5, levels=64, reach=4096),
    "IQ4_NL": Budget(block=45, tensor=6, levels=16, reach=127),
    "IQ4_XS": Budget(block=8, tensor=5, levels=16, reach=4064),
    "MXFP4": Budget(block=8, tensor=4, levels=15),
    "NVFP4": Budget(block=8, tensor=4, levels=15, reach=6 * 2.0**14),  # its scales are rounded to 2^-10 near zero
    "TQ1_0": Budget(block=8, tensor=2.5, levels=3, reach=1),
    "TQ2_0": Budget(block=8, tensor=2.5, levels=3, reach=1),
    # A row, or a part of it, has one scale, and many runs of 32 weights are much smaller: none is judged by itself.
    **dict.fromkeys(("I8_32", "I8_128"), Budget(block=1e9, tensor=50, share=1e-4)),
    **dict.fromkeys(("I4_32", "I4_64", "I4_128"), Budget(block=1e9, tensor=8, share=0.02)),
    **dict.fromkeys(("F8_32", "F8_128"), Budget(block=1e9, tensor=8, share=7e-4)),
    "IQ3_S": Budget(block=36, tensor=6, share=0.03, reach=465),
    "IQ3_XXS": Budget(block=28, tensor=6, share=0.045, reach=250),
    "IQ2_S": Budget(block=16, tensor=4, share=0.08, reach=170),
    "IQ2_XS": Budget(block=10, tensor=4, share=0.12, reach=170),
    "IQ2_XXS": Budget(block=20, tensor=4.5, share=0.15, reach=170),
    "IQ1_S": Budget(block=20, tensor=3.3, share=0.3, reach=17),
    "IQ1_M": Budget(block=20, tensor=3.3, share=0.3, reach=17),
}
