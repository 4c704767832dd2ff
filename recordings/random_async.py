"""Random asynchronous work: wgmma through random descriptors, tensor copies by random maps, bulk copies and reductions,
clusters with multicast and remote memory. Each piece waits for what it started, then traces the memory that it wrote.
"""

from __future__ import annotations

import numpy as np
from programs import Bits
from programs import operand as codes
from random_collective import FLOATS, fragment, group, metadata
from random_kernel import BASE, THREADS, Kernel
from random_scalar import form_of, vocabulary

from smalti.layout.descriptors import SmemDescriptor, decode_smem, encode_smem, operand_units
from smalti.layout.tensor_map import TYPES, TensorMap

WIDTH = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 8}
SWIZZLES = ("none", "32B", "64B", "128B")
SPAN = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
WINDOW = 8192  # bytes of shared memory that one operand's descriptors may reach


# -- wgmma -----------------------------------------------------------------------------------------------


def _window(k: Kernel, fmt: str, family: str = "") -> int:
    """Shared memory full of codes of a format; where it starts."""
    start = k.region(WINDOW, 1024)
    count = WINDOW // 4 // THREADS
    if fmt in ("s8", "u8", "b1"):
        words = k.random_words(count)
    else:
        family = family or k.dice.pick(FLOATS)
        words = codes(f"{k.name}w{len(k.lines)}", count * k.total * 32 // WIDTH[fmt], fmt, family)
        words = words.view(np.uint32).reshape(count, k.total)
    k.fill(start, words)
    return start


def _descriptor(k: Kernel, window: int, rows: int, k_bytes: int, bits: int, major: str) -> int:
    """A descriptor whose operand lies in the window, whatever it means there."""
    d = k.dice
    while True:
        swizzle, base = d.pick(SWIZZLES), 0
        if swizzle != "none" and d.chance(30):
            base = d.below(8)
        start = BASE + window + (16 * d.below(128) if d.chance(60) else 1024 * d.below(4))
        bits64 = encode_smem("sm_90a", start, 16 * d.below(160), 16 * d.below(160), base, swizzle)
        found: SmemDescriptor = decode_smem("sm_90a", bits64)
        units = operand_units(found, major=major, rows=rows, k_bytes=k_bytes, element_bits=bits) * 16
        if int(units.min()) >= BASE + window and int(units.max()) + 16 <= BASE + window + WINDOW:
            return bits64


def warpgroup_products(k: Kernel) -> None:
    """One to three wgmmas of one spelling in a group, A from shared memory or from registers."""
    d = k.dice
    opcode = d.pick(vocabulary("wgmma"))
    form = form_of(opcode)
    a, b = form.get("atype", "b1"), form.get("btype", "b1")
    n, depth = (int(x) for x in form.get("shape").split("n")[1].split("k"))
    sparse, dtype = ".sp." in opcode, form.get("dtype")
    registers = n // (4 if dtype == "f16" else 2)
    b_bytes = depth * WIDTH[b] // 8 if b != "b1" else depth // 8
    a_bytes = b_bytes // 2 if sparse else b_bytes
    if n * b_bytes > WINDOW // 2 or registers > 64:
        return
    family = d.pick(FLOATS)
    acc = fragment(k, {"f16": "f16", "f32": "f32"}.get(dtype, "s32"), registers, family)
    window_a, window_b = _window(k, a), _window(k, b)
    meta = metadata(k, a, False) if sparse else ""
    k.emit("fence.proxy.async.shared::cta;")
    k.sync()
    names = [s.name for s in form.lists()[0]]
    calls = []
    for _ in range(d.between(1, 3)):
        from_registers = d.chance(40)
        turn_a = int("trans_a" in names and not from_registers and d.chance(40))
        turn_b = int("trans_b" in names and d.chance(40))
        b_text = k.new("b64")
        k.emit(f"mov.b64 {b_text}, {_descriptor(k, window_b, n, b_bytes, WIDTH[b], 'MN' if turn_b else 'K')};")
        if from_registers:
            a_text = group(fragment(k, a, 4, d.pick(FLOATS)))
        else:
            a_text = k.new("b64")
            k.emit(f"mov.b64 {a_text}, {_descriptor(k, window_a, 64, a_bytes, WIDTH[a], 'MN' if turn_a else 'K')};")
        p = k.new("pred")
        k.emit(f"setp.ne.u32 {p}, {int(d.chance(75))}, 0;")
        tail = [p]
        if "scale_a" in names:
            tail += [d.pick(["1", "-1"]), d.pick(["1", "-1"])]
        if "trans_a" in names:
            tail += [str(turn_b)] if from_registers else [str(turn_a), str(turn_b)]
        more = f", {meta}, {d.pick(list(form.row.ranges['selector']))}" if sparse else ""
        calls.append(f"{opcode} {group(acc)}, {a_text}, {b_text}{more}, {', '.join(tail)};")
    k.emit("bar.warp.sync 0xffffffff;", "wgmma.fence.sync.aligned;", *calls)
    k.emit("wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;")
    for register in acc:
        k.trace("b32", register, opcode)
    k.sync()


# -- tensor copies ---------------------------------------------------------------------------------------

_TILED = [t for t in TYPES if t[0] in "usfbt" and not t.startswith("b4") and not t.startswith("b6")]


def _tensor(k: Kernel, most: int, types: list[str], strided: bool, loads: bool) -> TensorMap:
    """A random tensor map whose box has at most `most` bytes of shared memory."""
    d = k.dice
    while True:
        type_ = d.pick(types)
        size = TYPES[type_].bits // 8
        rank = d.between(1, 5)
        swizzle = d.pick(SWIZZLES)
        inner = 16 * d.between(1, (SPAN[swizzle] or 256) // 16)
        if inner // size > 256:
            continue
        box = [inner // size] + [d.between(1, 6) for _ in range(rank - 1)]
        step = [d.pick([1, 1, 2, 3]) if strided and d.chance(40) else 1 for _ in range(rank)]
        sizes = [d.between(1, 3 * inner // size)] + [d.between(1, 9) for _ in range(rank - 1)]
        pitch, stride = -(-sizes[0] * size // 16) * 16, []
        for n in sizes[1:]:
            pitch += 16 * d.below(3)
            stride.append(pitch)
            pitch *= n
        fill = "nan" if loads and TYPES[type_].floating and d.chance(30) else "zero"
        m = TensorMap(
            type_, tuple(sizes), tuple(stride), tuple(box), element_stride=tuple(step), swizzle=swizzle, fill=fill
        )
        rows = int(np.prod([-(-b // s) for b, s in zip(box[1:], step[1:], strict=True)], dtype=np.int64))
        if rows * m.row_pitch <= most and m.extent < 1 << 17:
            m.check("sm_90a")
            return m


def _tensor_data(k: Kernel, m: TensorMap) -> Bits:
    """Bytes of the whole tensor, the rest of its last 16-byte unit too."""
    count = (-(-m.extent // 16) + 1) * 16
    fmt = {"f32.ftz": "f32", "tf32.ftz": "f32", "tf32": "f32"}.get(m.type, m.type)
    if fmt in ("f16", "bf16", "f32"):
        return codes(f"{k.name}t{len(k.lines)}", count // (TYPES[m.type].bits // 8), fmt, k.dice.pick(FLOATS)).view(
            np.uint8
        )
    return k.dice.bits(count, 8)


def _coordinates(k: Kernel, m: TensorMap, loads: bool) -> list[str]:
    """Registers with random coordinates, other ones in each CTA."""
    d, made = k.dice, []
    for i, n in enumerate(m.size):
        unit = 128 // m.element.bits if i == 0 else 1
        low, high = (-2, n // unit + 1) if loads else (0, n // unit)
        first, step = d.between(low, max(high, low)) * unit, d.below(3) * unit
        register = k.new("b32")
        k.emit(f"mad.lo.s32 {register}, %cta, {step}, {first};")
        made.append(register)
    return made


def tensor_loads(k: Kernel) -> None:
    """Boxes of random maps, inside and over the edges; the whole destination is traced, gaps too."""
    most = 4096
    m = _tensor(k, most, _TILED, True, True)
    address = k.tensor_map(m, _tensor_data(k, m), False)
    _load(k, m, address, "", most, m.transfer_bytes, _coordinates(k, m, True), "")


def image_loads(k: Kernel) -> None:
    """im2col: random corners, offsets and element strides."""
    d = k.dice
    rank = d.between(3, 5)
    type_ = d.pick([t for t in _TILED if TYPES[t].bits <= 32])
    size = TYPES[type_].bits // 8
    swizzle = d.pick(SWIZZLES)
    channels = 16 * d.between(1, (SPAN[swizzle] or 64) // 16) // size
    space = rank - 2
    sizes = [d.between(channels, 3 * channels)] + [d.between(3, 8) for _ in range(space)] + [d.between(1, 3)]
    stride, pitch = [], -(-sizes[0] * size // 16) * 16
    for n in sizes[1:]:
        pitch += 16 * d.below(2)
        stride.append(pitch)
        pitch *= n
    lower = tuple(-d.below(3) for _ in range(space))
    upper = tuple(-d.below(3) for _ in range(space))
    steps = (1, *(d.pick([1, 1, 2]) for _ in range(space)), 1)
    pixels = d.between(1, 4096 // (SPAN[swizzle] or channels * size) // 2)
    m = TensorMap(
        type_, tuple(sizes), tuple(stride), (), element_stride=steps, swizzle=swizzle, mode="im2col", lower=lower, upper=upper,
        channels=channels, pixels=min(pixels, 64),
    )  # fmt: skip
    m.check("sm_90a")
    address = k.tensor_map(m, _tensor_data(k, m), False)
    at = [str(d.between(-1, 2) * 16 // size)]
    at += [str(d.between(lower[i], sizes[i + 1] + upper[i] - 1)) for i in range(space)] + [str(d.between(0, sizes[-1]))]
    offsets = []
    for _ in range(space):
        offsets.append(k.new("b16"))
        k.emit(f"mov.b16 {offsets[-1]}, {d.below(3)};")
    registers = k.news("b32", rank)
    for register, value in zip(registers, at, strict=True):
        k.emit(f"mov.b32 {register}, {value};")
    _load(k, m, address, ".im2col", 4096, m.transfer_bytes, registers, f", {group(offsets)}")


def _load(
    k: Kernel, m: TensorMap, address: str, mode: str, most: int, size: int, at: list[str], tail: str, sure: bool = True
) -> None:
    """Issue a copy and trace its destination; not `sure`: the number of bytes is a question, too."""
    start = k.region(most)
    k.fill(start, k.random_words(most // 4 // THREADS))
    barrier = k.barrier()
    k.emit("fence.proxy.async.shared::cta;")
    k.sync()
    spelling = f"cp.async.bulk.tensor.{m.rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
    k.emit(f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+{barrier}], {size};")
    k.emit(f"@%first {spelling} [%base+{start}], [{address}, {group(at)}], [%base+{barrier}]{tail};")
    if sure:
        k.wait(barrier)
    else:
        k.wait_at_most(barrier)
    k.dump(start, most, f"{spelling} {m.type} {m.swizzle} box {m.box}")


_STORED = ["u8", "u16", "u32", "s32", "u64", "f16", "bf16", "f32", "f32.ftz", "f64", "tf32"]
_OPERATIONS = {
    "u32": ("add", "min", "max", "inc", "dec", "and", "or", "xor"), "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max", "and", "or", "xor"), "s64": ("min", "max"), "f16": ("add", "min", "max"),
    "bf16": ("add", "min", "max"), "f32": ("add",), "f32.ftz": ("add",),
}  # fmt: skip


def tensor_stores(k: Kernel) -> None:
    """One CTA stores or reduces a box; the tensor is compared at the end, what lies between its rows too."""
    d, most = k.dice, 4096
    reduces = d.chance(50)
    m = _tensor(k, most, list(_OPERATIONS) if reduces else _STORED, False, False)
    address = k.tensor_map(m, _tensor_data(k, m), True)
    start = k.region(most)
    fmt = {"f32.ftz": "f32"}.get(m.type, m.type)
    words = k.random_words(most // 4 // THREADS)
    if fmt in ("f16", "bf16", "f32"):
        words = codes(f"{k.name}s{len(k.lines)}", words.size * 4 // (TYPES[m.type].bits // 8), fmt, d.pick(FLOATS))
        words = words.view(np.uint32).reshape(-1, k.total)
    k.fill(start, words)
    k.emit("fence.proxy.async.shared::cta;")
    k.sync()
    at = _coordinates(k, m, False)
    mine = k.new("pred")
    k.emit(f"setp.eq.u32 {mine}, %gid, {THREADS * d.below(k.ctas)};")
    op = f".{d.pick(_OPERATIONS[m.type])}" if reduces else ""
    verb = "cp.reduce" if reduces else "cp"
    spelling = f"{verb}.async.bulk.tensor.{m.rank}d.global.shared::cta{op}.tile.bulk_group"
    k.emit(f"@{mine} {spelling} [{address}, {group(at)}], [%base+{start}];")
    k.emit("cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0;")


# -- bulk copies -----------------------------------------------------------------------------------------


def bulk_copies(k: Kernel) -> None:
    """Global to shared memory, and back as a copy or a reduction into words of each CTA's own."""
    d = k.dice
    size = 16 * d.between(1, 128)
    start, most = k.region(2048), 2048
    k.fill(start, k.random_words(4))
    barrier = k.barrier()
    opcode = d.pick(vocabulary("bulk.reduce")) if d.chance(70) else "cp.async.bulk.global.shared::cta.bulk_group"
    type_ = form_of(opcode).get("type")
    base = {"": "u32"}.get(type_, type_)
    bits = {"bf16": 16}.get(base) or int(base[1:])
    count = k.ctas * 2048 * 8 // bits
    old = (
        codes(f"{k.name}b{len(k.lines)}", count, base, d.pick(FLOATS))
        if base in ("f16", "bf16", "f32")
        else d.bits(count, bits)
    )
    new = (
        codes(f"{k.name}n{len(k.lines)}", count, base, d.pick(FLOATS))
        if base in ("f16", "bf16", "f32")
        else d.bits(count, bits)
    )
    if base == "f64":
        old, new = (
            x & np.uint64(0x800FFFFFFFFFFFFF) | (np.uint64(1019) + x >> np.uint64(60)) << np.uint64(52)
            for x in (old, new)
        )
    source = k.global_words(np.ascontiguousarray(new).view(np.uint32))
    target = k.global_words(np.ascontiguousarray(old).view(np.uint32))
    at = k.new("b64")
    k.emit("fence.proxy.async;")
    k.sync()
    k.emit(f"mad.wide.u32 {at}, %cta, 2048, %rw;")
    k.emit(f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+{barrier}], {size};")
    spelling = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    k.emit(f"@%first {spelling} [%base+{start}], [{at}+{source}], {size}, [%base+{barrier}];")
    k.wait(barrier)
    k.dump(start, most, spelling)
    back = 16 * d.between(1, size // 16)
    k.emit(f"@%first {opcode} [{at}+{target}], [%base+{start}], {back};")
    k.emit("cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0;")
    k.sync()


def small_copies(k: Kernel) -> None:
    """cp.async of 4, 8 and 16 bytes, with less source than destination."""
    d = k.dice
    size = d.pick([4, 8, 16])
    start, words = k.region(THREADS * 16), k.global_words(k.dice.bits(k.total * 4, 32))
    at, mine, other = k.new("b64"), k.new("b32"), k.new("b32")
    k.emit(f"mad.wide.u32 {at}, %gid, 16, %rw;", f"mad.lo.u32 {mine}, %me, 16, %base;")
    k.emit(f"st.shared.v4.b32 [{mine}+{start}], {group([k.operand('b32') for _ in range(4)])};")
    level = "cg" if size == 16 and d.chance(50) else "ca"
    for part in range(0, 16, 2 * size if size < 16 else 16):
        less = ""
        if d.chance(50):
            n = k.new("b32")
            k.emit(f"and.b32 {n}, {k.operand('b32')}, {size - 1};")
            less = f", {n}"
        k.emit(f"cp.async.{level}.shared.global [{mine}+{start + part}], [{at}+{words + part}], {size}{less};")
    k.emit("cp.async.commit_group;", "cp.async.wait_group 0;")
    k.sync()
    four = k.news("b32", 4)
    k.emit(f"xor.b32 {other}, %me, {d.below(THREADS)};", f"mad.lo.u32 {other}, {other}, 16, %base;")
    k.emit(f"ld.shared.v4.b32 {group(four)}, [{other}+{start}];")
    for register in four:
        k.result("b32", register, f"cp.async.{level} {size}")
    k.sync()


PIECES = (
    warpgroup_products, warpgroup_products, warpgroup_products, tensor_loads, tensor_loads, image_loads, tensor_stores,
    tensor_stores, bulk_copies, small_copies,
)  # fmt: skip
