"""The compiled copies between a wgmma accumulator's registers and its matrix. Imported at the first use only.

Register 4j + 2h + i of thread 32w + 4g + q holds row 16w + 8h + g, column 8j + 2q + i (layout.fragments.wgmma_d, which
a test compares).
"""

from __future__ import annotations

from typing import Any

from smalti.numerics.kernels import _compiled


@_compiled
def gather(words: Any, matrix: Any) -> None:
    """words [N/2, 128] of uint32 into matrix [64, N]."""
    for w in range(4):
        for h in range(2):
            for g in range(8):
                row = matrix[16 * w + 8 * h + g]
                for j in range(words.shape[0] // 4):
                    for q in range(4):
                        row[8 * j + 2 * q] = words[4 * j + 2 * h, 32 * w + 4 * g + q]
                        row[8 * j + 2 * q + 1] = words[4 * j + 2 * h + 1, 32 * w + 4 * g + q]


@_compiled
def scatter(matrix: Any, words: Any) -> None:
    """The inverse."""
    for w in range(4):
        for h in range(2):
            for g in range(8):
                row = matrix[16 * w + 8 * h + g]
                for j in range(words.shape[0] // 4):
                    for q in range(4):
                        words[4 * j + 2 * h, 32 * w + 4 * g + q] = row[8 * j + 2 * q]
                        words[4 * j + 2 * h + 1, 32 * w + 4 * g + q] = row[8 * j + 2 * q + 1]
