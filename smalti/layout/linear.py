"""Layouts as values: maps from named indices to named coordinates, linear over GF(2) on index bits where they can be,
integer-affine around that. Compose, invert, compare, print and evaluate them here; what they mean (rows, lanes,
bytes) is the business of the files that build them, and drawing is in `draw`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smalti.errors import error
from smalti.layout.boundary import whole

__all__ = ["Layout", "Mode"]

Array = NDArray[np.int64]
LARGEST_VALUE = (1 << 63) - 1
LARGEST = 1 << 22  # positions of a layout that may be enumerated: 32 MiB an output


class Mode(NamedTuple):
    """One digit of an index: `size` values; `strides` is its unit's contribution to each output.

    `xor` digits (always of size 2) are combined by exclusive or, the others are added to that.
    """

    size: int
    strides: tuple[int, ...]
    xor: bool


class Layout:
    """A map from named indices to named coordinates; immutable.

    `inputs` gives, for each index, its digits from the least significant one: `(size, {output: stride})`, as in
    `Layout({"row": [(8, {"offset": 16}), (25, {"offset": 128})]}, ["offset"])`. An index runs from 0 to the
    product of its digits' sizes, 0 maps to 0. Digits whose binary strides never collide become GF(2) bits.
    Two layouts are equal if they have the same names in the same order, the same sizes, and the same values.

    Errors: SML0404 for names that do not fit, SML0405 for sizes, strides or values out of range, SML0406 for what are
    no whole numbers.
    """

    __slots__ = ("_hash", "_offsets", "modes", "outputs")

    outputs: tuple[str, ...]
    modes: dict[str, tuple[Mode, ...]]

    def __init__(self, inputs: Mapping[str, Iterable[tuple[int, Mapping[str, int]]]], outputs: Sequence[str]) -> None:
        names = tuple(outputs)
        modes: dict[str, list[Mode]] = {}
        for name, digits in inputs.items():
            modes[name] = []
            for size, strides in _pairs(name, digits):
                _require_names(strides, names)
                modes[name].append(Mode(whole("Layout", "size", size), _strides(strides, names), False))
        self._set(modes, names)

    @classmethod
    def linear(cls, bases: Mapping[str, Sequence[Mapping[str, int]]], outputs: Sequence[str]) -> Layout:
        """The GF(2) map that sends bit i of index `name` to `bases[name][i]`, combined by exclusive or."""
        names = tuple(outputs)
        modes: dict[str, list[Mode]] = {}
        for name, vectors in bases.items():
            modes[name] = []
            for basis in vectors:
                _require_names(basis, names)
                modes[name].append(Mode(2, _strides(basis, names), True))
        return cls._make(modes, names)

    @classmethod
    def _make(cls, modes: Mapping[str, Sequence[Mode]], outputs: tuple[str, ...]) -> Layout:
        made = cls.__new__(cls)
        made._set(modes, outputs)
        return made

    def _set(self, modes: Mapping[str, Sequence[Mode]], outputs: tuple[str, ...]) -> None:
        for name, digits in modes.items():
            for mode in digits:
                if mode.size < 1 or min(mode.strides, default=0) < 0:
                    raise error("SML0405", what=f"digit {mode.size} of {name!r}", value=mode.strides, limit="0")
        for name in (*modes, *outputs):
            if not isinstance(name, str):
                raise error("SML0406", function="Layout", name="a name", value=repr(name)[:80], wanted="text")
        if not outputs or len(set(outputs)) < len(outputs):
            raise error("SML0404", expected=["one or more", "different outputs"], given=list(outputs))
        every = [mode for digits in modes.values() for mode in digits]
        for o, output in enumerate(outputs):
            most = sum((mode.size - 1) * mode.strides[o] for mode in every)
            if most > LARGEST_VALUE:
                raise error("SML0405", what=f"largest {output!r}", value=most, limit=LARGEST_VALUE)
        self.outputs = outputs
        self.modes = _fold(modes, len(outputs))
        self._offsets: Array | None = None
        self._hash: int | None = None

    # what it is

    @property
    def inputs(self) -> dict[str, int]:
        """Name and size of each index."""
        return {name: prod(mode.size for mode in digits) for name, digits in self.modes.items()}

    @property
    def size(self) -> int:
        """Number of positions."""
        return prod(self.inputs.values())

    @property
    def extents(self) -> dict[str, int]:
        """Largest value of each output, plus one."""
        stacked = self._stacked().reshape(len(self.outputs), -1)
        return {name: int(values.max()) + 1 for name, values in zip(self.outputs, stacked, strict=True)}

    @property
    def is_linear(self) -> bool:
        """True if the whole map is linear over GF(2)."""
        return all(mode.xor for digits in self.modes.values() for mode in digits)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        if self is other:
            return True
        if self.outputs != other.outputs or list(self.inputs.items()) != list(other.inputs.items()):
            return False
        return self.modes == other.modes or bool(np.array_equal(self._stacked(), other._stacked()))

    def __hash__(self) -> int:
        if self._hash is None:
            probes = []
            for name, size in self.inputs.items():
                at = [1 << i for i in range(size.bit_length()) if 1 << i < size] + [size - 1]
                probes.append((name, size, self._at({name: np.array(at, np.int64)}).tobytes()))
            self._hash = hash((self.outputs, tuple(probes)))
        return self._hash

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.inputs.items())
        return f"<Layout {sizes} -> {', '.join(self.outputs)}>"

    def __str__(self) -> str:
        lines = [repr(self)[8:-1]]
        width = max(map(len, self.modes), default=0)
        lines += [f"  {name:<{width}}  {self._digits(digits)}" for name, digits in self.modes.items()]
        return "\n".join(lines)

    def _digits(self, digits: Sequence[Mode]) -> str:
        """`8 by column*2, 2 by offset^144`: runs of doubling bits are shown as one digit."""
        runs: list[tuple[int, Mode]] = []
        for mode in digits:
            if runs and mode.xor and runs[-1][1].xor:
                size, first = runs[-1]
                if mode.strides == tuple(size * s for s in first.strides) and _single_bits(first):
                    runs[-1] = (2 * size, first)
                    continue
            runs.append((mode.size, mode))
        shown = []
        for size, mode in runs:
            mark = "*" if not mode.xor or _single_bits(mode) else "^"
            moves = [f"{o}{mark}{s}" for o, s in zip(self.outputs, mode.strides, strict=True) if s]
            shown.append(f"{size} by {' '.join(moves) or 'nothing'}")
        return ", ".join(shown) or "1"

    # values

    def __call__(self, **indices: ArrayLike) -> Array:
        """Values at the given indices (integers or arrays that broadcast; all indices must be given).

        int64; with several outputs there is a leading axis over them, so `row, column = layout(...)` works.
        Errors: SML0404 names, SML0405 an index out of range.
        """
        if indices.keys() != self.modes.keys():
            raise error("SML0404", expected=list(self.modes), given=list(indices))
        given = {name: _whole_array(name, value) for name, value in indices.items()}
        for name, size in self.inputs.items():
            low, high = (int(given[name].min()), int(given[name].max())) if given[name].size else (0, 0)
            if low < 0 or high >= size:
                raise error("SML0405", what=f"index {name!r}", value=low if low < 0 else high, limit=size)
        values = self._at(given)
        return values[0] if len(self.outputs) == 1 else values

    def offsets(self) -> Array:
        """All values: shape (size of each index), with several outputs behind a leading axis over them.

        int64, read-only, computed once. Errors: SML0405 for more than 2**22 positions.
        """
        stacked = self._stacked()
        return stacked[0] if len(self.outputs) == 1 else stacked

    def _stacked(self) -> Array:
        if self._offsets is None:
            if self.size > LARGEST:
                raise error("SML0405", what="number of positions", value=self.size, limit=LARGEST)
            count = len(self.modes)
            grid = {
                name: np.arange(size).reshape([-1 if i == axis else 1 for i in range(count)])
                for axis, (name, size) in enumerate(self.inputs.items())
            }
            values = self._at(grid)
            values.flags.writeable = False
            self._offsets = values
        return self._offsets

    def _at(self, indices: Mapping[str, Array]) -> Array:
        """Values with a leading output axis; indices left out are 0."""
        shape = np.broadcast_shapes(*(value.shape for value in indices.values()))
        xored = np.zeros((len(self.outputs), *shape), np.int64)
        added = np.zeros_like(xored)
        for name, values in indices.items():
            index = values.reshape((1,) * (len(shape) - values.ndim) + values.shape)
            weight = 1
            bits = np.zeros((len(self.outputs), *index.shape), np.int64)
            sums = np.zeros_like(bits)
            for mode in self.modes[name]:
                digit = index // weight % mode.size
                into = bits if mode.xor else sums
                for o, stride in enumerate(mode.strides):
                    if stride and mode.xor:
                        into[o] ^= digit * stride
                    elif stride:
                        into[o] += digit * stride
                weight *= mode.size
            xored ^= bits
            added += sums
        xored += added
        return xored

    # algebra

    def then(self, after: Layout) -> Layout:
        """This layout followed by `after`, which takes outputs of this one by name; others pass through behind.

        Errors: SML0404 if a name is missing, SML0405 if values leave the range of `after`, SML0403 if the
        composition is not a layout (a sum carries into bits that `after` mixes).
        """
        passed = tuple(o for o in self.outputs if o not in after.modes)
        if not set(after.modes) <= set(self.outputs) or set(passed) & set(after.outputs):
            raise error("SML0404", expected=list(after.modes), given=list(self.outputs))
        outputs = after.outputs + passed
        own = dict(zip(self.outputs, self._stacked(), strict=True))
        for name, size in after.inputs.items():
            if int(own[name].max()) >= size:
                raise error("SML0405", what=f"output {name!r}", value=int(own[name].max()), limit=size)

        def through(values: Mapping[str, Array]) -> Array:
            mapped = after._at({name: values[name] for name in after.modes})
            kept = [np.broadcast_to(values[name], mapped.shape[1:]) for name in passed]
            return np.stack([*mapped, *kept])

        modes: dict[str, list[Mode]] = {}
        for name, digits in self.modes.items():
            weight, modes[name] = 1, []
            for mode in digits:
                strides = dict(zip(self.outputs, mode.strides, strict=True))
                for size in _split(mode, strides, after):
                    unit = dict(zip(self.outputs, self._at({name: np.array(weight)}), strict=True))
                    linear = mode.xor and all(_only_bits(int(unit[o]), digits) for o, digits in after.modes.items())
                    modes[name].append(Mode(size, tuple(map(int, through(unit))), linear))
                    weight *= size
        made = Layout._make(modes, outputs)
        if not np.array_equal(made._stacked(), through(own)):
            raise error("SML0403", operation="composition", layout=f"{self!r} then {after!r}")
        return made

    def invert(self) -> Layout:
        """The layout that takes this one's outputs back to its indices.

        Errors: SML0401 if two positions share a value, SML0402 if values do not fill the box of `extents`,
        SML0403 if the inverse is not a layout.
        """
        self._require_injective()
        extents = self.extents
        if prod(extents.values()) != self.size:
            raise error("SML0402", layout=repr(self), box=extents, positions=self.size)
        names = tuple(self.modes)
        modes = _inverse(self, names, extents)
        if modes is not None:
            made = Layout._make(modes, names)
            if made.inputs == extents:
                values = dict(zip(self.outputs, self._stacked(), strict=True))
                grid = np.meshgrid(*map(np.arange, self.inputs.values()), indexing="ij")
                if np.array_equal(made._at(values), np.stack(grid) if grid else made._at(values)):
                    return made
        raise error("SML0403", operation="inverse", layout=repr(self))

    def locate(self, **outputs: ArrayLike) -> Array:
        """Indices (leading axis over them, as with several outputs) of the given output values; -1 where none.

        A layout that does not fill its box still has this. Errors: SML0401 if it is not injective, SML0404.
        """
        if outputs.keys() != set(self.outputs):
            raise error("SML0404", expected=list(self.outputs), given=list(outputs))
        self._require_injective()
        extents = self.extents
        table = np.full(prod(extents.values()), -1, np.int64)
        table[self._codes(extents)] = np.arange(self.size)
        given = np.broadcast_arrays(*(_whole_array(name, outputs[name]) for name in self.outputs))
        inside = np.ones(given[0].shape, bool)
        code = np.zeros(given[0].shape, np.int64)
        for values, extent in zip(given, extents.values(), strict=True):
            inside &= (values >= 0) & (values < extent)
            code = code * extent + np.where(inside, values, 0)
        flat = np.where(inside, table[np.where(inside, code, 0)], -1)
        places = np.unravel_index(np.maximum(flat, 0), tuple(self.inputs.values()))
        found = np.stack(places) if places else np.zeros((0, *flat.shape), np.int64)
        found = np.where(flat < 0, -1, found).astype(np.int64)
        return found[0] if len(self.modes) == 1 else found

    def _codes(self, extents: Mapping[str, int]) -> Array:
        if prod(extents.values()) > LARGEST:
            raise error("SML0405", what="number of output values", value=prod(extents.values()), limit=LARGEST)
        code = np.zeros(self.size, np.int64)
        for values, extent in zip(self._stacked(), extents.values(), strict=True):
            code = code * extent + values.reshape(-1)
        return code

    def _require_injective(self) -> None:
        codes = self._codes(self.extents)
        order = np.argsort(codes, kind="stable")
        same = np.flatnonzero(np.diff(codes[order]) == 0)
        if same.size:
            shape = tuple(self.inputs.values())
            first, second = (np.unravel_index(order[same[0] + i], shape) for i in (0, 1))
            pair = [dict(zip(self.modes, map(int, at), strict=True)) for at in (first, second)]
            raise error("SML0401", layout=repr(self), first=pair[0], second=pair[1])


def _require_names(strides: Mapping[str, int], names: tuple[str, ...]) -> None:
    if not isinstance(strides, Mapping):
        wanted = "a mapping from outputs to whole numbers"
        raise error("SML0406", function="Layout", name="strides", value=repr(strides)[:80], wanted=wanted)
    if not strides.keys() <= set(names):
        raise error("SML0404", expected=list(names), given=list(strides))


def _pairs(name: str, digits: Iterable[tuple[int, Mapping[str, int]]]) -> list[tuple[int, Mapping[str, int]]]:
    try:
        return [(size, strides) for size, strides in digits]
    except (TypeError, ValueError):
        wanted = "pairs of a size and strides"
        shown = repr(digits)[:80]
        raise error("SML0406", function="Layout", name=f"index {name!r}", value=shown, wanted=wanted) from None


def _strides(strides: Mapping[str, int], names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(whole("Layout", f"stride of {name!r}", strides.get(name, 0)) for name in names)


def _whole_array(name: str, value: ArrayLike) -> Array:
    """int64. Errors: SML0406 for floats, truth values, or anything else that numpy would cut to fit."""
    found = np.asarray(value)
    if found.dtype.kind not in "iu" and found.size:
        raise error("SML0406", function="a layout", name=name, value=repr(value)[:80], wanted="whole numbers")
    return found.astype(np.int64)


def _single_bits(mode: Mode) -> bool:
    return all(s & (s - 1) == 0 for s in mode.strides)


def _fold(modes: Mapping[str, Sequence[Mode]], outputs: int) -> dict[str, tuple[Mode, ...]]:
    """Turn added digits into bits as long as their strides share no bit with any other bit's stride."""
    taken = [0] * outputs
    for mode in (mode for digits in modes.values() for mode in digits if mode.xor):
        taken = [t | s for t, s in zip(taken, mode.strides, strict=True)]
    folded: dict[str, tuple[Mode, ...]] = {}
    for name, digits in modes.items():
        done: list[Mode] = []
        for mode in digits:
            size, strides = mode.size, mode.strides
            while not mode.xor and size % 2 == 0 and not any(t & s for t, s in zip(taken, strides, strict=True)):
                done.append(Mode(2, strides, True))
                taken = [t | s for t, s in zip(taken, strides, strict=True)]
                size, strides = size // 2, tuple(2 * s for s in strides)
            if size > 1:
                done.append(Mode(size, strides, mode.xor))
        folded[name] = tuple(done)
    return folded


def _split(mode: Mode, strides: Mapping[str, int], after: Layout) -> Iterator[int]:
    """Sizes into which an added digit falls at the digit boundaries of the layout that follows."""
    cuts = {1}
    for name, digits in after.modes.items():
        weight = 1
        for later in digits:
            weight *= later.size
            if strides[name] and weight % strides[name] == 0:
                cuts.add(weight // strides[name])
    done = 1
    for cut in sorted(cuts):
        if done < cut < mode.size and cut % done == 0 and mode.size % cut == 0:
            yield cut // done
            done = cut
    yield mode.size // done


def _only_bits(value: int, digits: Sequence[Mode]) -> bool:
    for mode in digits:
        value, digit = divmod(value, mode.size)
        if digit and not mode.xor:
            return False
    return True


def _inverse(layout: Layout, names: tuple[str, ...], extents: Mapping[str, int]) -> dict[str, list[Mode]] | None:
    """Candidate digits of the inverse: the GF(2) part by elimination, each added digit turned round."""
    bits: list[tuple[int, tuple[int, ...]]] = []  # output bits of each xor digit, its weight in each index
    added: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}  # (output, stride) -> size, weights
    vectors = [_join(mode.strides) for digits in layout.modes.values() for mode in digits if mode.xor]
    for axis, digits in enumerate(layout.modes.values()):
        weight = 1
        for mode in digits:
            weights = tuple(weight if i == axis else 0 for i in range(len(names)))
            weight *= mode.size
            vector = _join(mode.strides)
            moved = [(o, s) for o, s in enumerate(mode.strides) if s]
            alone = len(moved) == 1 and moved[0] not in added
            shared = sum(vector & other != 0 for other in vectors) > 1
            if mode.xor and (_single_bits(mode) or shared or not alone):
                bits.append((vector, weights))
            elif alone:
                added[moved[0]] = (mode.size, weights)
            else:
                return None
    powers = all(w & (w - 1) == 0 for _, weights in bits for w in weights)
    solved = _eliminate(bits, len(names))
    modes: dict[str, list[Mode]] = {}
    for o, (name, extent) in enumerate(extents.items()):
        weight, modes[name] = 1, []
        while weight < extent:
            if (o, weight) in added:
                size, weights = added[o, weight]
                modes[name].append(Mode(size, weights, False))
            elif weight & (weight - 1) == 0 and (key := 1 << (64 * o + weight.bit_length() - 1)) in solved:
                size = 2
                modes[name].append(Mode(2, solved[key], powers))
            else:
                return None
            weight *= size
    return modes


def _join(strides: Sequence[int]) -> int:
    return sum(s << (64 * o) for o, s in enumerate(strides))


def _eliminate(bits: Sequence[tuple[int, tuple[int, ...]]], axes: int) -> dict[int, tuple[int, ...]]:
    """For each output bit that is a combination of the vectors: the combination's weights, summed."""
    rows = [(vector, 1 << i) for i, (vector, _) in enumerate(bits)]
    for i in range(len(rows)):
        pivot = rows[i][0] & -rows[i][0]
        if not pivot:
            continue
        for j in range(len(rows)):
            if j != i and rows[j][0] & pivot:
                rows[j] = (rows[j][0] ^ rows[i][0], rows[j][1] ^ rows[i][1])
    solved = {}
    for vector, used in rows:
        if vector and vector & (vector - 1) == 0:
            members = [weights for i, (_, weights) in enumerate(bits) if used >> i & 1]
            solved[vector] = tuple(sum(weights[axis] for weights in members) for axis in range(axes))
    return solved
