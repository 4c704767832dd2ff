"""Random work of clusters: memory of other CTAs, multicast, asynchronous stores and reductions, remote barriers.

All CTAs of the cluster meet before and after each piece, so that nobody leaves or reuses what another still reads.
"""

from __future__ import annotations

from random_async import _TILED, _coordinates, _tensor, _tensor_data
from random_collective import group
from random_kernel import THREADS, Kernel
from random_scalar import form_of, vocabulary


def _ranks(k: Kernel) -> tuple[str, str]:
    """Registers with the CTA's rank, and with that of another CTA of its cluster."""
    rank, other = k.new("b32"), k.new("b32")
    k.emit(f"mov.u32 {rank}, %cluster_ctarank;", f"xor.b32 {other}, {rank}, {k.dice.between(1, k.cluster - 1)};")
    return rank, other


def remote_loads(k: Kernel) -> None:
    """Loads and atomics on shared memory of another CTA."""
    d = k.dice
    start = k.region(THREADS * 16)
    k.fill(start, k.random_words(4))
    _, other = _ranks(k)
    at, theirs, mixed = k.new("b32"), k.new("b32"), k.new("b32")
    k.cluster_sync()
    k.emit(f"add.u32 {at}, %base, {start};", f"mapa.shared::cluster.u32 {theirs}, {at}, {other};")
    k.emit(f"xor.b32 {mixed}, %me, {d.below(THREADS)};", f"mad.lo.u32 {mixed}, {mixed}, 16, {theirs};")
    four = k.news("b32", 4)
    k.emit(f"ld.shared::cluster.v4.b32 {group(four)}, [{mixed}];")
    for register in four:
        k.result("b32", register, "ld.shared::cluster.v4.b32")
    k.cluster_sync()
    op = d.pick(["add.u32", "max.s32", "xor.b32", "exch.b32"])
    old = k.new("b32")
    k.emit(f"atom.shared::cluster.{op} {old}, [{mixed}], {k.operand('b32')};")
    k.result("b32", old, f"atom.shared::cluster.{op}")
    k.cluster_sync()
    k.dump(start, THREADS * 16, "memory after remote atomics")
    rank = k.new("b32")
    k.emit(f"getctarank.shared::cluster.u32 {rank}, {theirs};")
    k.result("b32", rank, "getctarank")
    k.cluster_sync()


def multicast(k: Kernel) -> None:
    """A box of a random map into several CTAs, by one of them; and a bulk copy likewise."""
    d, most = k.dice, 2048
    start = k.region(most)
    k.fill(start, k.random_words(most // 4 // THREADS))
    barrier = k.barrier()
    k.emit("fence.proxy.async.shared::cta;")
    mask = d.between(1, (1 << k.cluster) - 1)
    issuer = d.below(k.cluster)
    rank, _ = _ranks(k)
    in_mask, issues, bit, set_ = k.new("pred"), k.new("pred"), k.new("b32"), k.new("b16")
    if d.chance(60):
        m = _tensor(k, most, _TILED, True, True)
        address = k.tensor_map(m, _tensor_data(k, m), False)
        size = m.transfer_bytes
        at = _coordinates(k, m, True)
        spelling = (
            f"cp.async.bulk.tensor.{m.rank}d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        )
        call = f"{spelling} [%base+{start}], [{address}, {group(at)}], [%base+{barrier}], {set_};"
    else:
        size = 16 * d.between(1, most // 16)
        source = k.global_words(d.bits(most // 4, 32))
        spelling = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        call = f"{spelling} [%base+{start}], [%rw+{source}], {size}, [%base+{barrier}], {set_};"
    k.emit(f"mov.b16 {set_}, {mask};", f"shr.u32 {bit}, {mask}, {rank};", f"and.b32 {bit}, {bit}, 1;")
    k.emit(f"setp.ne.u32 {in_mask}, {bit}, 0;", f"setp.eq.u32 {issues}, {rank}, {issuer};")
    k.emit(f"and.pred {issues}, {issues}, %first;")
    expects, skip = k.new("pred"), k.label()
    k.emit(f"and.pred {expects}, {in_mask}, %first;")
    k.emit(f"@{expects} mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+{barrier}], {size};")
    k.cluster_sync()
    k.emit(f"@{issues} {call}")
    k.emit(f"@!{in_mask} bra {skip};")  # the same for all threads of a CTA
    k.wait(barrier)
    k.emit(f"{skip}:")
    k.sync()
    k.dump(start, most, f"{spelling} mask {mask}")
    k.cluster_sync()


def remote_stores(k: Kernel) -> None:
    """st.async and red.async of every thread into another CTA, which waits for the bytes."""
    d = k.dice
    start = k.region(THREADS * 16)
    k.fill(start, k.random_words(4))
    barrier = k.barrier()
    _, other = _ranks(k)
    reduces = d.chance(50)
    if reduces:
        opcode = d.pick(vocabulary("red.async"))
        form = form_of(opcode)
        bits, count = int(form.get("type")[1:]), 1
    else:
        bits, count = d.pick([(32, 1), (32, 2), (32, 4), (64, 1), (64, 2)])
        vec = f".v{count}" if count > 1 else ""
        opcode = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vec}.b{bits}"
    size = bits // 8 * count
    at, bar, p = k.new("b32"), k.new("b32"), k.operand
    k.emit(f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+{barrier}], {size * THREADS};")
    k.cluster_sync()
    k.emit(f"add.u32 {at}, %base, {start};", f"mapa.shared::cluster.u32 {at}, {at}, {other};")
    k.emit(f"mad.lo.u32 {at}, %me, 16, {at};", f"add.u32 {bar}, %base, {barrier};")
    k.emit(f"mapa.shared::cluster.u32 {bar}, {bar}, {other};")
    values = [p(f"b{bits}") for _ in range(count)]
    k.emit(f"{opcode} [{at}], {group(values) if count > 1 else values[0]}, [{bar}];")
    k.wait(barrier)
    k.dump(start, THREADS * 16, opcode)
    k.cluster_sync()


def remote_bulk(k: Kernel) -> None:
    """A bulk copy or reduction from one CTA's shared memory into another's."""
    d = k.dice
    start, target = k.region(2048), k.region(2048)
    k.fill(start, k.random_words(4))
    k.fill(target, k.random_words(4))
    barrier = k.barrier()
    size = 16 * d.between(1, 128)
    opcode = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    if d.chance(50):
        opcode = d.pick(vocabulary("bulk.reduce.shared"))
    _, other = _ranks(k)
    at, bar = k.new("b32"), k.new("b32")
    k.emit("fence.proxy.async;", f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+{barrier}], {size};")
    k.cluster_sync()
    for register, offset in ((at, target), (bar, barrier)):
        k.emit(f"add.u32 {register}, %base, {offset};", f"mapa.shared::cluster.u32 {register}, {register}, {other};")
    k.emit(f"@%first {opcode} [{at}], [%base+{start}], {size}, [{bar}];")
    k.wait(barrier)
    k.dump(target, 2048, opcode)
    k.cluster_sync()


def remote_arrivals(k: Kernel) -> None:
    """Threads of every CTA arrive on the barrier of one; all read what was stored before."""
    d = k.dice
    start = k.region(THREADS * 4)
    barrier = k.barrier(THREADS)
    _, other = _ranks(k)
    mine, bar, value, source = k.new("b32"), k.new("b32"), k.new("b32"), k.new("b32")
    k.emit(f"mad.lo.u32 {mine}, %me, 4, %base;", f"add.u32 {bar}, %base, {barrier};")
    k.emit(f"mapa.shared::cluster.u32 {source}, {mine}, {other};", f"mapa.shared::cluster.u32 {bar}, {bar}, {other};")
    k.emit(f"st.shared::cluster.b32 [{source}+{start}], {k.operand('b32')};")
    k.emit(f"mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{bar}];")
    again, done = k.label(), k.new("pred")
    k.emit(f"{again}:", f"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 {done}, [%base+{barrier}], 0;")
    k.emit(f"@!{done} bra {again};")
    k.rejoin()
    k.emit(f"xor.b32 {mine}, %me, {d.below(THREADS)};", f"mad.lo.u32 {mine}, {mine}, 4, %base;")
    k.emit(f"ld.shared.b32 {value}, [{mine}+{start}];")
    k.result("b32", value, "st.shared::cluster before a remote arrival")
    k.cluster_sync()


PIECES = (remote_loads, multicast, multicast, remote_stores, remote_bulk, remote_arrivals)
