"""The tensor core of Hopper: accumulators in registers, and matrix products of shared tiles and register arrays.

`accumulator(m, n, dtype)` makes places, zeroed; `acc.mma(a, b, add=...)` issues; only `acc.wait()` gives values.
One call spans any number of 64-row tiles, of N up to what registers hold, and of K (PTX ISA 9.7.15).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smalti.errors import error
from smalti.lang.arrays import Array
from smalti.lang.distribution import ROWS, Distribution, operand_a
from smalti.lang.distribution import accumulator as accumulator_layout
from smalti.lang.dtypes import DType, dtype
from smalti.lang.shared import Shared
from smalti.lang.trace import Later, Region, Trace, current
from smalti.lang.values import Scalar, Value, as_value, fresh
from smalti.ptx.module import Immediate, Register

__all__ = ["Accumulator", "a_layout", "accumulator", "d_layout", "fence", "wait"]

K_BYTES = 32  # of K in one dense instruction, for every type (PTX ISA 9.7.15.2)
MOST_N = 256
MOST_REGISTERS = 255  # of a thread
_INTEGER_N = (8, 16, 24, *range(32, 257, 16))  # PTX ISA 9.7.15.2, table of shapes

# operand types that may stand together, and the accumulators they allow
_FLOAT8 = ("e4m3", "e5m2")
_INT8 = ("s8", "u8")
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "f16": (("f16",), ("f32", "f16")),
    "bf16": (("bf16",), ("f32",)),
    "tf32": (("tf32",), ("f32",)),
    "e4m3": (_FLOAT8, ("f32", "f16")),
    "e5m2": (_FLOAT8, ("f32", "f16")),
    "s8": (_INT8, ("s32",)),
    "u8": (_INT8, ("s32",)),
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one call falls into instructions: `m` 64-row tiles, `n` columns in tiles of `wide`, `k` steps of `deep`."""

    m: int
    n: int
    wide: int
    k: int
    deep: int


class Accumulator:
    """Registers that the tensor core accumulates in, `shape` of dtype f32, f16 or s32, zero at first.

    While products are in flight nothing may touch them: there is no way to read one but `wait()`.
    """

    def __init__(self, shape: tuple[int, int], kind: DType, wide: int, trace: Trace) -> None:
        self.shape, self.dtype, self.wide = shape, kind, wide
        self.region = trace.region
        self._version = 0
        self._uses: list[tuple[Region, Region]] = []  # of values: where they were given, where they were used
        count = shape[0] * shape[1] // 128 // kind.per_register
        type_ = kind.register if kind.bits == 32 else "b32"
        self.registers = [trace.register(type_) for _ in range(count)]
        self._zeroing: Later | None = trace.later()
        with trace.at(self._zeroing):
            self.zero()

    def __repr__(self) -> str:
        return f"<{self.dtype.name} accumulator {self.shape[0]}x{self.shape[1]}>"

    @property
    def raw(self) -> list[Register]:
        """Its registers in the order of PTX; they may be in flight."""
        return list(self.registers)

    @property
    def distribution(self) -> Distribution:
        return accumulator_layout(*self.shape) if self.wide == self.shape[1] else d_layout(*self.shape, self.wide)

    def zero(self) -> None:
        """Set it to zero; no product may be in flight."""
        self._written(current().region)
        for r in self.registers:
            _zero(r)

    def mma(
        self,
        a: Shared | Array,
        b: Shared,
        *,
        add: Scalar,
        negate_a: bool = False,
        negate_b: bool = False,
        saturate: bool = False,
        a_transpose: bool = False,
        b_transpose: bool = False,
        metadata: Any = None,
        selector: int = 0,
    ) -> None:
        """Issue acc = a @ b (+ acc where `add` holds) and commit it as one group.

        a: [M, K], a shared tile or a register array in the layout of operand A; b: [K, N], a shared tile.
        A tile whose contiguous dimension is not K is read transposed by the tensor core (16-bit types only);
        `a_transpose=True` (`b_transpose`) reads it the other way round, like `.T`. `add` has no default: False drops
        what the accumulator held. `metadata`: for a 2:4 sparse a of half the K, see `sparse_metadata`.

        Errors: SML0600 shapes, SML0601 dtypes, SML0602 layout of a register array, SML0603 negation or saturation
        that the type lacks, SML0604 not a warpgroup, SML0414 transposed 8- or 32-bit operands.
        """
        trace = current()
        self._visible(trace)
        if a_transpose:
            a = _turned(a)
        if b_transpose:
            b = b.T
        _check_threads(trace)
        _check_types(a, b, self)
        sparse = metadata is not None
        shape = self._split(a, b, sparse)
        _check_signs(a.dtype.name, negate_a, negate_b, saturate)
        if isinstance(a, Shared):
            a.publish(tensor=True)
        b.publish(tensor=True)
        for operand in (a, b):
            if isinstance(operand, Shared) and operand.slot is not None:
                operand.slot.used("wgmma")
        if add is False and trace.region is self.region and self._zeroing is not None:
            self._zeroing.block.statements.clear()  # the first product overwrites it whatever happens
        self._zeroing = None
        self._written(trace.region)
        signs = [] if self.dtype.name == "s32" else [-1 if negate_a else 1, -1 if negate_b else 1]
        self._issue(a, b, shape, _scale_d(add), signs, saturate, metadata, selector)

    def _issue(
        self,
        a: Shared | Array,
        b: Shared,
        shape: _Shape,
        add: Any,
        signs: list[int],
        saturate: bool,
        metadata: Any,
        selector: int,
    ) -> None:
        trace = current()
        sparse = metadata is not None
        deep = shape.deep * (2 if sparse else 1)
        a_operand = None if isinstance(a, Array) else MatrixOperand(a, a.axis == 1, ROWS, shape.deep)
        b_operand = MatrixOperand(b, b.axis == 0, shape.wide, deep)
        bits16 = a.dtype.bits == 16
        turns = [int(not o.k_major) for o in (a_operand, b_operand) if o is not None] if bits16 else []
        opcode = (
            f"wgmma.mma_async{'.sp' if sparse else ''}.sync.aligned.m{ROWS}n{shape.wide}k{deep}"
            f"{'.satfinite' if saturate else ''}.{self.dtype.name}.{a.dtype.name}.{b.dtype.name}"
        )
        fence()
        per_tile = ROWS * shape.wide // 128 // self.dtype.per_register
        per_row = per_tile * (shape.n // shape.wide)
        for step in range(shape.k):
            for row in range(shape.m):
                for column in range(shape.n // shape.wide):
                    first = row * per_row + column * per_tile
                    d = self.registers[first : first + per_tile]
                    if isinstance(a, Array):
                        at = 4 * (row * shape.k + step)
                        a_part: Any = a.raw[at : at + 4]
                    else:
                        assert a_operand is not None
                        a_part = a_operand.at(row * ROWS, step * shape.deep)
                    b_part = b_operand.at(column * shape.wide, step * deep)
                    extra = [metadata(row, step), selector] if sparse else []
                    keep = add if step == 0 else True
                    trace.emit(opcode, list(d), a_part, b_part, *extra, _predicate(keep), *signs, *turns)
        trace.emit("wgmma.commit_group.sync.aligned")
        trace.count_wgmma_group()
        count = shape.k * shape.m * (shape.n // shape.wide)
        trace.note("wgmma", f"fence, {count} x m64n{shape.wide}k{deep}, commit")

    def wait(self, *, behind: int = 0) -> Array:
        """Wait for the products in flight (all but the `behind` newest groups) and give the values.

        They are the accumulator's own registers: use them before the next product (or take a `copy()`), else
        SML0607. Ring stages that were held back for these products are given back here, too.
        """
        trace = current()
        self._visible(trace)
        wait(behind)
        if behind == 0:
            for release in trace.after_wgmma.get(trace.region.threads.role, ()):
                release()
        return Array(self.dtype, self.distribution, list(self.registers), trace.region, _Loan(self, trace.region))

    def _written(self, region: Region) -> None:
        """Values given before are gone; one given outside a loop and used inside it would be gone next time round."""
        self._version += 1
        loops = region.loops()
        if any(loops & used.loops() - made.loops() for made, used in self._uses):
            raise error("SML0607", shape=self.shape)

    def _visible(self, trace: Trace) -> None:
        if not trace.region.inside(self.region):
            raise error("SML0306", where=self.region.kind, role=self.region.threads.describe())

    def _split(self, a: Shared | Array, b: Shared, sparse: bool) -> _Shape:
        m, n = self.shape
        k = a.shape[1]
        deep = K_BYTES * 8 // a.dtype.bits
        if a.shape[0] != m or b.shape[1] != n or b.shape[0] != k * (2 if sparse else 1):
            raise error("SML0600", a=a.shape, b=b.shape, d=self.shape, k=k, wanted="a[M,K] @ b[K,N] -> [M,N]")
        if k % deep:
            raise error("SML0600", a=a.shape, b=b.shape, d=self.shape, k=k, wanted=f"K a multiple of {deep}")
        if isinstance(a, Array) and a.distribution != operand_a(m, k, a.dtype.bits):
            raise error("SML0602", have=str(a.distribution), wanted=str(operand_a(m, k, a.dtype.bits)))
        return _Shape(m // ROWS, n, self.wide, k // deep, deep)


class _Loan:
    """Values that are an accumulator's own registers; arrays call it at every use."""

    def __init__(self, owner: Accumulator, made: Region) -> None:
        self.owner, self.made, self.version = owner, made, owner._version

    def __call__(self) -> None:
        owner = self.owner
        if owner._version != self.version:
            raise error("SML0607", shape=owner.shape)
        use = (self.made, current().region)
        if use not in owner._uses:
            owner._uses.append(use)


class MatrixOperand:
    """Descriptors of one shared tile: a base made once, and constant steps to each instruction's part.

    `outer` rows or columns and `deep` elements of K are what one instruction takes.
    """

    def __init__(self, tile: Shared, k_major: bool, outer: int, deep: int) -> None:
        self.tile, self.k_major = tile, k_major
        part = tile.geometry.operand(k_major).descriptor(current().arch, 0, rows=outer, columns=deep)
        self.constant = part.encode()
        self.parts: dict[int, Value] = {}
        self.start = tile.inside

    def at(self, outer: int, k: int) -> Value:
        """Descriptor of the part at row (column) `outer` and at `k`."""
        g = self.tile.geometry
        line, along = (outer, k) if self.k_major else (k, outer)
        offset = g.offset(line, along + self.start)
        if offset not in self.parts:
            self.parts[offset] = self._base() if offset == 0 else self._base() + (offset >> 4)
        return self.parts[offset]

    def _base(self) -> Value:
        if -1 not in self.parts:
            self.parts[-1] = matrix_descriptor(self.tile.address(), self.constant)
        return self.parts[-1]


def matrix_descriptor(address: Value, constant: int) -> Value:
    """The descriptor of what begins at a shared address, u64; `constant` has all its other fields."""
    trace = current()
    field, wide = fresh("u32"), fresh("u64")
    trace.emit("bfe.u32", field, address, 4, 14)
    low = field | (constant & 0xFFFFFFFF)
    trace.emit("mov.b64", wide, [as_value(low, "u32"), as_value(constant >> 32, "u32")])
    return wide


def accumulator(m: int, n: int, kind: DType | str = "f32") -> Accumulator:
    """An accumulator of m x n in the registers of this warpgroup: m a multiple of 64, n of 8.

    It starts as zero, and stays zero until a product: made before a loop over tiles whose first product has
    add=False, it is zeroed once, and still right where K = 0.

    Errors: SML0605 sizes, SML0606 more registers than a thread has, SML0601 dtype, SML0604 not a warpgroup.
    """
    trace, to = current(), dtype(kind)
    _check_threads(trace)
    if to.name not in ("f32", "f16", "s32"):
        raise error("SML0601", a="any", b="any", d=to.name, legal="f32, f16 or s32")
    _check_size(m, n)
    wide = _width(n, to)
    registers = m * n // 128 // to.per_register
    if registers > MOST_REGISTERS - 24:
        most = (MOST_REGISTERS - 24) * 128 * to.per_register // m // 8 * 8
        raise error("SML0606", m=m, n=n, registers=registers, limit=MOST_REGISTERS - 24, nearest=most)
    trace.plan.registers.append(f"accumulator {m}x{n} {to.name}: {registers} a thread")
    return Accumulator((m, n), to, wide, trace)


def _check_size(m: int, n: int) -> None:
    if m <= 0 or m % ROWS or n <= 0 or n % 8:
        raise error("SML0605", m=m, n=n, nearest=(max(-(-m // 64), 1) * 64, max(-(-n // 8), 1) * 8))


def _width(n: int, kind: DType) -> int:
    """The widest N of an instruction that divides n."""
    legal = _INTEGER_N if kind.name == "s32" else range(8, MOST_N + 1, 8)
    found = [w for w in legal if n % w == 0]
    if not found:
        raise error("SML0605", m=ROWS, n=n, nearest=(ROWS, -(-n // 16) * 16))
    return max(found)


def a_layout(rows: int, k: int, kind: DType | str) -> Distribution:
    """The distribution of operand A in registers, for `shared.get(...)` and `tile.load(...)`: rows x k elements.

    Rows are a multiple of 64, k of one instruction's K (32 bytes). Errors: SML0609.
    """
    step = 256 // dtype(kind).bits
    if rows <= 0 or rows % ROWS or k <= 0 or k % step:
        nearest = (max(-(-rows // ROWS), 1) * ROWS, max(-(-k // step), 1) * step)
        raise error("SML0609", rows=rows, k=k, kind=dtype(kind).name, step=step, nearest=nearest)
    return operand_a(rows, k, dtype(kind).bits)


def d_layout(m: int, n: int, wide: int | None = None) -> Distribution:
    """The distribution of an accumulator of m x n whose instructions are `wide` columns wide. Errors: SML0605."""
    _check_size(m, n)
    if wide is None or wide == n:
        return accumulator_layout(m, n)
    narrow = accumulator_layout(ROWS, wide)
    return Distribution("accumulator", (m, n), ROWS, wide, narrow.fragment)


def fence() -> None:
    """Order this warpgroup's accesses to accumulators and A registers before the following products."""
    current().emit("wgmma.fence.sync.aligned")


def wait(behind: int = 0) -> None:
    """Wait until at most `behind` committed groups of products are in flight."""
    trace = current()
    trace.emit("wgmma.wait_group.sync.aligned", behind)


def _zero(register: Register) -> None:
    zero: Any = Immediate(0, "f32") if register.type == "f32" else 0
    current().emit(f"mov.{register.type}", register, zero)


def _turned(a: Shared | Array) -> Shared:
    if isinstance(a, Array):
        raise error("SML0602", have=f"{a.distribution}, transposed", wanted="operand A as it is")
    return a.T


def _predicate(add: Any) -> Any:
    if not isinstance(add, bool):
        return add
    return current().once(("predicate", add), lambda: as_value(add, "pred"))


def _scale_d(add: Any) -> Any:
    if isinstance(add, Value) and add.dtype.kind != "pred":
        return add != 0
    return add if isinstance(add, Value) else bool(add)


def _check_threads(trace: Trace) -> None:
    threads = trace.region.threads
    if threads.single or threads.warps % 4:
        raise error("SML0604", threads=threads.describe())


def _check_types(a: Shared | Array, b: Shared, acc: Accumulator) -> None:
    if not isinstance(a, Shared | Array) or not isinstance(b, Shared):
        given = f"{type(a).__name__} and {type(b).__name__}"
        raise error("SML0334", what="mma", wanted="a: shared tile or register array, b: shared tile", given=given)
    mates, results = _KINDS.get(a.dtype.name, ((), ()))
    if b.dtype.name not in mates or acc.dtype.name not in results:
        legal = f"b {' or '.join(mates)}, accumulator {' or '.join(results)}" if mates else f"a {', '.join(_KINDS)}"
        raise error("SML0601", a=a.dtype.name, b=b.dtype.name, d=acc.dtype.name, legal=legal)


def _check_signs(name: str, negate_a: bool, negate_b: bool, saturate: bool) -> None:
    integer = name in _INT8
    if saturate and not integer:
        raise error("SML0603", what="saturate", dtype=name, legal="s8 and u8")
    if (negate_a or negate_b) and integer:
        raise error("SML0603", what="negation", dtype=name, legal="the floating-point types")
