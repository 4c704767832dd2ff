"""Which cells of tensor memory an operation touches: the layouts as index arrays in the engine's order, made once for
each shape. Lanes and columns are relative to the operation's address.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from smalti.layout import tensor

Index = npt.NDArray[np.int64]


def _frozen(stacked: npt.ArrayLike) -> Index:
    found = np.ascontiguousarray(stacked)
    found.flags.writeable = False
    return found


@lru_cache(256)
def accumulator(m: int, n: int, group: int, ws: bool, sparse: bool) -> Index:
    """CTA of the pair, lane, column of each element of D: [3, m, n]."""
    layout = tensor.accumulator(m, n, group, ws, sparse)
    return _frozen(layout(m=np.arange(m)[:, None], n=np.arange(n)[None, :]))


@lru_cache(64)
def a_operand(m: int, k: int, bits: int, group: int, ws: bool, sparse: bool) -> Index:
    """Lane, column of the cells of A's rows in one CTA: [2, replicas, rows, cells]."""
    layout = tensor.a_operand(m, k, bits, group, ws, sparse)
    first = np.arange(0, k, 32 // bits)[None, None, :]
    replica = np.arange(layout.inputs["replica"])[:, None, None]
    return _frozen(layout(m=np.arange(m // group)[None, :, None], k=first, replica=replica)[1:3])


@lru_cache(64)
def scales(operand: str, extent: int, split: bool) -> Index:
    """Lane, column of the cell that holds the factors of each row ("A") or column ("B"): [2, replicas, extent]."""
    cells = tensor.scale_cells(operand, extent, 1, split)
    return _frozen(np.moveaxis(cells[:2, :, 0, :], 2, 1))


@lru_cache(64)
def metadata(m: int, bits: int, group: int, ws: bool, selector: int) -> Index:
    """Lane, column, shift of the 4-bit code of each chunk of the rows in one CTA: [3, rows, chunks]."""
    layout = tensor.metadata(m, bits, group, ws)
    extents = layout.inputs
    index = {"row": np.arange(extents["row"])[:, None], "chunk": np.arange(extents["chunk"])[None, :]}
    return _frozen(layout(**index, selector=selector if extents["selector"] > 1 else 0, replica=0))


@lru_cache(256)
def moved(shape: str, num: int, packed: bool, split: int) -> Index:
    """Lane, column of what tcgen05.ld and st of .x<num> move: [2, registers, parts, 32]; parts are 16-bit halves."""
    layout = tensor.load_store(shape, num, packed, split)
    register = np.arange(layout.inputs["register"])[:, None, None]
    part = np.arange(layout.inputs["part"])[None, :, None]
    return _frozen(layout(thread=np.arange(32)[None, None, :], register=register, part=part))


@lru_cache(16)
def copied(shape: str, multicast: str) -> Index:
    """Lane, column of the cells that tcgen05.cp writes: [2, copies, rows, columns]."""
    layout = tensor.copy(shape, multicast)
    extents = layout.inputs
    return _frozen(
        layout(
            row=np.arange(extents["row"])[None, :, None],
            byte=np.arange(0, extents["byte"], 4)[None, None, :],
            replica=np.arange(extents["replica"])[:, None, None],
        )[:2]
    )
