"""Pictures of layouts, as text and as SVG: a grid over two names of the layout, each cell labelled with the rest.
Knows layouts only as values.
"""

from __future__ import annotations

from colorsys import hls_to_rgb
from html import escape
from itertools import product
from typing import NamedTuple

import numpy as np

from smalti.errors import error
from smalti.layout.boundary import checked
from smalti.layout.linear import Layout

__all__ = ["Grid", "grid", "svg", "text"]

MOST_CELLS = 1 << 16


class Grid(NamedTuple):
    """What is drawn: names of the two axes, what a label lists, and labels by (row, column), "" where nothing is.

    `colour` holds the first number of each label (-1 where nothing is), by which cells are shaded.
    """

    rows: str
    columns: str
    legend: str
    labels: list[list[str]]
    colour: list[list[int]]


@checked
def grid(layout: Layout, rows: str = "", columns: str = "") -> Grid:
    """The grid over `rows` and `columns`: two outputs (cells then say which indices lie there, copies separated by
    "/"), or two indices (cells say the outputs). Indices that are not drawn and have one value are left out.

    By default the first two outputs, or, if there is one only, the first two indices of more than one value.
    Errors: SML0404 for names that are not two outputs or two indices, SML0405 for more than 65536 cells.
    """
    inputs = layout.inputs
    if not inputs:
        raise error("SML0404", expected=["one or more indices"], given=[])
    if not rows and not columns:
        wide = [name for name, size in inputs.items() if size > 1] or list(inputs)
        rows, columns = (layout.outputs if len(layout.outputs) > 1 else [*wide, *wide])[:2]
    by_output = rows in layout.outputs and columns in layout.outputs
    if not by_output and not (rows in inputs and columns in inputs):
        raise error("SML0404", expected=[*layout.outputs, *inputs], given=[rows, columns])
    sizes = layout.extents if by_output else inputs
    height, width = sizes[rows], sizes[columns]
    if height * width > MOST_CELLS or layout.size > 4 * MOST_CELLS:
        raise error("SML0405", what="number of cells to draw", value=max(height * width, layout.size), limit=MOST_CELLS)
    indices = dict(zip(inputs, np.indices(tuple(inputs.values())).reshape(len(inputs), -1), strict=True))
    values = layout.offsets().reshape(len(layout.outputs), -1)
    outputs = dict(zip(layout.outputs, values, strict=True))
    place, rest = (outputs, indices) if by_output else (indices, outputs)
    other = [name for name in place if name not in (rows, columns) and place[name].max() > 0]
    shown = [name for name in rest if rest[name].max() > 0 or len(rest) == 1] + other
    found = {**rest, **{name: place[name] for name in other}}
    labels: list[list[str]] = [[""] * width for _ in range(height)]
    colour = [[-1] * width for _ in range(height)]
    numbers = np.stack([found[name] for name in shown], axis=1) if shown else np.zeros((layout.size, 1), int)
    for at, (row, column) in enumerate(zip(place[rows].tolist(), place[columns].tolist(), strict=True)):
        label = ".".join(map(str, numbers[at].tolist()))
        labels[row][column] += ("/" if labels[row][column] else "") + label
        if colour[row][column] < 0:
            colour[row][column] = int(numbers[at, 0])
    return Grid(rows, columns, ".".join(shown) or "0", labels, colour)


@checked
def text(layout: Layout, rows: str = "", columns: str = "") -> str:
    """The grid as lines of text; parameters and errors as `grid`."""
    drawn = grid(layout, rows, columns)
    corner = f"{drawn.rows}\\{drawn.columns}"
    width = max(len(label) for line in drawn.labels for label in line)
    width = max(width, len(str(len(drawn.labels[0]) - 1)), 1)
    head = " ".join(f"{column:>{width}}" for column in range(len(drawn.labels[0])))
    lines = [f"cells: {drawn.legend}", f"{corner} {head}"]
    for row, labels in enumerate(drawn.labels):
        cells = " ".join(f"{label or '-':>{width}}" for label in labels)
        lines.append(f"{row:>{len(corner)}} {cells}")
    return "\n".join(lines)


@checked
def svg(layout: Layout, rows: str = "", columns: str = "") -> str:
    """The grid as an SVG document, shaded by the first number of each label; parameters and errors as `grid`."""
    drawn = grid(layout, rows, columns)
    height, width = len(drawn.labels), len(drawn.labels[0])
    across = 8 + 7 * max(max(len(label) for line in drawn.labels for label in line), len(str(width)), 2)
    down, margin = 18, 48
    size = f"{margin + width * across + 1} {2 * down + height * down + 1}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="monospace" font-size="11" '
        'text-anchor="middle" dominant-baseline="central">',
        f"<title>{escape(repr(layout)[1:-1])}</title>",
        _label(margin + width * across / 2, down / 2, f"{drawn.columns} (cells: {drawn.legend})"),
        _label(margin / 2, 1.5 * down, drawn.rows),
    ]
    parts += [_label(margin + (column + 0.5) * across, 1.5 * down, str(column)) for column in range(width)]
    parts += [_label(margin / 2, (row + 2.5) * down, str(row)) for row in range(height)]
    for row, column in product(range(height), range(width)):
        shade = drawn.colour[row][column]
        # neighbouring numbers get distant hues: multiples of the golden angle
        fill = "none" if shade < 0 else _pastel(shade * 137 % 360)
        x, y = margin + column * across, (row + 2) * down
        parts.append(f'<rect x="{x}" y="{y}" width="{across}" height="{down}" fill="{fill}" stroke="#888"/>')
        if drawn.labels[row][column]:
            parts.append(_label(x + across / 2, y + down / 2, drawn.labels[row][column]))
    return "\n".join([*parts, "</svg>"])


def _pastel(hue: int) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in hls_to_rgb(hue / 360, 0.85, 0.7))


def _label(x: float, y: float, words: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{escape(words)}</text>'
