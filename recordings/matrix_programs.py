"""More questions about matrix instructions: every spelling of mma.sync and mma.sp, chains and widths of wgmma, exponent
floors, and descriptors of every kind of operand.
"""

from __future__ import annotations

from collections.abc import Iterator

from programs import Program
from random_async import _descriptor, _window
from random_collective import _BITS, fragment, group, metadata, mma_operands
from random_kernel import Kernel
from random_scalar import form_of, vocabulary

CTAS = 3
FLOAT_FAMILIES = ("window", "few", "special", "bits", "small", "zeros")


def warp_products() -> Iterator[Program]:
    """Every spelling of mma.sync and mma.sp, one program a row of the table and type of D."""
    programs: dict[str, Kernel] = {}
    for opcode in vocabulary("mma"):
        form = form_of(opcode)
        name = f"all {form.row.name} {form.get('dtype')}"
        k = programs.setdefault(name, Kernel(name, CTAS))
        many = form.get("dtype") in ("f32", "f16") and "m8n8k4" not in opcode
        for family in FLOAT_FAMILIES[:: 1 if many else 2]:
            out, text = mma_operands(k, opcode, family)
            k.emit(text)
            for register in out:
                k.trace("b64" if "f64" in opcode else "b32", register, opcode)
            if form.get("dtype") == "s32":
                break
    for name, k in programs.items():
        yield k.program("mma.sp" if "mma.sp" in name else "mma.sync")


def chains() -> Iterator[Program]:
    """Four wgmmas on one accumulator in one group, each of other operands; scale-d false in the second."""
    for opcode in (
        "m64n16k16.f32.f16.f16", "m64n16k16.f16.f16.f16", "m64n16k16.f32.bf16.bf16", "m64n16k8.f32.tf32.tf32",
        "m64n16k32.f32.e4m3.e4m3", "m64n16k32.f16.e5m2.e4m3", "m64n16k32.s32.s8.u8",
    ):  # fmt: skip
        k = Kernel(f"wgmma chain {opcode}", CTAS)
        for false in (9, 1):
            _products(k, f"wgmma.mma_async.sync.aligned.{opcode}", 4, false)
        yield k.program("wgmma chain")


def operands() -> Iterator[Program]:
    """Both operands through random descriptors: every swizzle, major, start, base offset and stride."""
    for opcode in (
        ".m64n16k16.f32.f16.f16", ".m64n32k16.f32.bf16.bf16", ".m64n16k8.f32.tf32.tf32", ".m64n16k32.s32.u8.s8",
        ".m64n16k32.f32.e4m3.e5m2", ".sp.m64n16k32.f32.f16.f16", ".sp.m64n16k16.f32.tf32.tf32",
        ".sp.m64n16k64.f32.e5m2.e4m3", ".sp.m64n16k64.s32.s8.s8",
    ):  # fmt: skip
        head, rest = (
            ("wgmma.mma_async.sp.sync.aligned", opcode[3:])
            if opcode.startswith(".sp")
            else ("wgmma.mma_async.sync.aligned", opcode)
        )
        k = Kernel(f"wgmma descriptors {opcode[1:]}", 2)
        _products(k, head + rest, 24, 9)
        yield k.program("descriptors")


def _products(k: Kernel, opcode: str, count: int, false: int) -> None:
    """`count` wgmmas in a row; the accumulator is traced after groups of four. Number `false` does not accumulate."""
    d, form = k.dice, form_of(opcode)
    a, b, dtype = form.get("atype"), form.get("btype"), form.get("dtype")
    n, depth = (int(x) for x in form.get("shape").split("n")[1].split("k"))
    sparse, names = ".sp." in opcode, [s.name for s in form.lists()[0]]
    b_bytes = depth * (_BITS.get(b, 8)) // 8
    acc = fragment(k, dtype if dtype != "s32" else "s32", n // (4 if dtype == "f16" else 2), "window")
    window_a, window_b = _window(k, a, "window"), _window(k, b, "window")
    meta = metadata(k, a, False) if sparse else ""
    k.emit("fence.proxy.async.shared::cta;")
    k.sync()
    yes, no = k.new("pred"), k.new("pred")
    k.emit(f"setp.eq.u32 {yes}, 0, 0;", f"setp.ne.u32 {no}, 0, 0;")
    for first in range(0, count, 4):
        calls = []
        for i in range(first, first + 4):
            turn_a, turn_b = (int("trans_a" in names and d.chance(50)) for _ in range(2))
            codes = k.news("b64", 2)
            for register, window, rows, size, fmt, turn in (
                (codes[0], window_a, 64, b_bytes // 2 if sparse else b_bytes, a, turn_a), (codes[1], window_b, n, b_bytes, b, turn_b),
            ):  # fmt: skip
                bits = _descriptor(k, window, rows, size, _BITS.get(fmt, 8), "MN" if turn else "K")
                k.emit(f"mov.b64 {register}, {bits};")
            tail = [yes if i != false else no]
            if "scale_a" in names:
                tail += ["1", "1"]
            if "trans_a" in names:
                tail += [str(turn_a), str(turn_b)]
            more = f", {meta}, {i % len(list(form.row.ranges['selector']))}" if sparse else ""
            calls.append(f"{opcode} {group(acc)}, {codes[0]}, {codes[1]}{more}, {', '.join(tail)};")
        k.emit(
            "wgmma.fence.sync.aligned;", *calls, "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"
        )
        for register in acc:
            k.trace("b32", register, opcode)


def programs() -> list[Program]:
    return [*warp_products(), *chains(), *operands()]
