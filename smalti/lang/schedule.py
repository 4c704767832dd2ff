"""Which CTA computes which tiles: one tile a CTA, or a persistent loop in an order that suits the L2 cache.

Sets the grid of the launch, as an expression that the host evaluates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from smalti.errors import error
from smalti.lang import grid
from smalti.lang.control import Range
from smalti.lang.source import check_loop
from smalti.lang.tensors import Tiles
from smalti.lang.threads import block_index, cluster_rank, grid_size
from smalti.lang.trace import current
from smalti.lang.values import Scalar, cdiv, minimum

__all__ = ["Persistent", "block_tile", "launch_grid", "persistent"]

GROUP = 8  # tile rows that are finished before the next ones begin


class Persistent:
    """A loop over tiles (i, j) of a matrix, shared out among as many CTAs as fit the device; usable in every role."""

    def __init__(self, tiles: Tiles, group: int, pair: bool) -> None:
        self.tiles, self.group, self.pair = tiles, group, pair

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        check_loop()
        return self._run()

    def _run(self) -> Iterator[tuple[Any, Any]]:
        trace = current()
        size = math.prod(trace.cluster)
        rows, columns = self.tiles.shape[-2:]
        tall = 1 if self.pair else size  # rows of tiles that the CTAs of a cluster take
        rows = cdiv(rows, tall)
        first, step = block_index(), grid_size()
        if size > 1:
            first, step = first // size, step // size
        for t in Range(first, rows * columns, step)._run():
            i, j = raster(t, rows, columns, self.group)
            yield (i * tall + cluster_rank() if tall > 1 else i), j


def raster(t: Any, rows: Any, columns: Any, group: int) -> tuple[Any, Any]:
    """Tile number t, in bands of `group` rows, each walked column by column."""
    band = columns * group
    g = t // band
    inside = t - g * band
    height = minimum(rows - g * group, group)
    j = inside // height
    return g * group + (inside - j * height), j


def persistent(tiles: Tiles, *, group: int = GROUP, pair: bool = False) -> Persistent:
    """`for i, j in sm.persistent(D)`: all tiles of D, in bands of `group` rows so that operands stay in L2.

    The grid is as many CTAs as the device has multiprocessors, at most one a tile. In a cluster, its CTAs take
    neighbouring rows of tiles; with `pair` the two CTAs of a pair share each tile. Errors: SML0304 if the grid is
    already set otherwise.
    """
    trace = current()
    size = math.prod(trace.cluster)
    *_, rows, columns = tiles.counts()
    clusters = grid.times(rows if pair or size == 1 else grid.cdiv(rows, size), columns)
    sms: grid.Expression = grid.SMS if size == 1 else ["//", grid.SMS, size]
    launch_grid(grid.times(grid.least(sms, clusters), size))
    if not isinstance(group, int) or group < 1:
        raise error("SML0304", what="group of sm.persistent", value=str(group), wanted="a positive Python int")
    return Persistent(tiles, group, pair)


def block_tile(tiles: Tiles, *, pair: bool = False) -> tuple[Scalar, Scalar]:
    """One tile a CTA, or with `pair` one a CTA pair: its indices (i, j) along the last two dimensions; the grid has a
    CTA (a pair) for each tile."""
    *_, rows, columns = tiles.counts()
    launch_grid(grid.times(rows, 2) if pair else rows, columns)
    return (block_index(0) >> 1 if pair else block_index(0)), block_index(1)


def launch_grid(x: grid.Expression, y: grid.Expression = 1, z: grid.Expression = 1) -> None:
    """The grid in CTAs: ints, names of sizes, or expressions of `smalti.lang.grid`."""
    trace = current()
    wanted = (x, y, z)
    if trace.grid is not None and trace.grid != wanted:
        raise error("SML0304", what="the grid", value="set twice, differently", wanted="one grid a kernel")
    trace.grid = wanted
