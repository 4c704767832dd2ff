"""Kernels for the tests of tensor memory, written instruction by instruction on top of `asm`.

Each CTA copies an image into its shared memory, allocates all of tensor memory and fills it with poison; after the
body of the test, every cell goes out: `dump` gives [CTAs, 128 lanes, 512 columns].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from smalti.layout.descriptors import SmemDescriptor, encode_idesc
from smalti.ptx.module import Address, Guard, Special
from tests.vgpu.asm import BASE, Kernel

COLUMNS = 512
IMAGE = 128 * 1024  # bytes of the image of a CTA
FULL, DONE, EXTRA, SLOT = IMAGE, IMAGE + 8, IMAGE + 16, IMAGE + 64
SCRATCH = IMAGE + 128  # 1 KiB that nobody has written
GARBAGE = 0xFF  # where nothing belongs: a NaN in most formats


def poison() -> np.ndarray:
    """What the cells hold before the test: a different word in each."""
    lane, column = np.arange(128)[:, None], np.arange(COLUMNS)[None, :]
    return (0x3AD00000 + lane * COLUMNS + column).astype(np.uint32)


def image(*parts: dict[int, np.ndarray]) -> np.ndarray:
    """The images of the CTAs: {offset: data} each; garbage elsewhere."""
    out = np.full((len(parts), IMAGE), GARBAGE, np.uint8)
    for row, placed in zip(out, parts, strict=True):
        for at, data in placed.items():
            raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
            row[at : at + len(raw)] = raw
    return out


def k_major(raw: np.ndarray) -> np.ndarray:
    """Rows of bytes [rows, n] as core matrices without swizzle: 8 rows x 16 bytes each, rows first, then columns."""
    rows, n = raw.shape
    return np.ascontiguousarray(raw.reshape(rows // 8, 8, n // 16, 16).transpose(2, 0, 1, 3)).reshape(-1)


def k_descriptor(at: int, rows: int) -> int:
    """Of what `k_major` gives."""
    return SmemDescriptor("sm_100a", BASE + at, lbo=rows * 16, sbo=128).encode()


class Tensor(Kernel):
    """`images` [CTAs, bytes]; two CTAs make a pair."""

    def __init__(
        self, images: np.ndarray, *, threads: int = 128, arch: str = "sm_100a", columns: int = COLUMNS
    ) -> None:
        self.group = len(images)
        super().__init__(threads, arch=arch, cluster=self.group, shared=SCRATCH + 1024)
        self.columns = columns
        source = self.buffer("image", images, writable=False)
        self.out = self.buffer("dump", np.zeros((self.group, 128, COLUMNS), np.uint32))
        self.rank = self.value("mov.u32", Special("cluster_ctarank"))
        self.leader, self.warp0 = self.reg("pred"), self.reg("pred")
        self.emit("setp.lt.u32", self.warp0, self.tid, 32)
        self.emit("setp.eq.and.u32", self.leader, self.rank, 0, self.first)
        for at, count in ((FULL, 1), (DONE, 1), (EXTRA, 4)):
            self.emit("mbarrier.init.shared::cta.b64", self.at(at), count, guard=self.first)
        self.emit("fence.mbarrier_init.release.cluster")
        self.alloc(columns)
        if self.group == 2:
            self.cluster_sync()
        self.sync()
        self.taddr = self.value("ld.shared.b32", self.at(SLOT))
        mine = self.reg("b64")
        self.emit("mad.wide.u32", mine, self.rank, IMAGE, source)
        self.expect(FULL, IMAGE)
        self.emit(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
            self.at(), Address(mine), IMAGE, self.at(FULL), guard=self.first,
        )  # fmt: skip
        self.wait(self.at(FULL), 0)
        warp = self.value("and.b32", self.value("shr.u32", self.tid, 5), 3)
        self.mine = self.value("add.u32", self.taddr, self.value("shl.b32", warp, 21))  # this warp's lanes
        self.phase = 0

    # -- pieces of kernels --------------------------------------------------------------------------------

    def alloc(self, columns: int, slot: int = SLOT, guard: Any = None) -> None:
        self.emit(
            f"tcgen05.alloc.cta_group::{self.group}.sync.aligned.shared::cta.b32", self.at(slot), columns,
            guard=guard or self.warp0,
        )  # fmt: skip

    def cluster_sync(self) -> None:
        self.emit("barrier.cluster.arrive.aligned")
        self.emit("barrier.cluster.wait.aligned")

    def everyone(self) -> None:
        """A barrier of all threads of the CTA or pair."""
        if self.group == 2:
            self.cluster_sync()
        else:
            self.sync()

    def handover(self) -> None:
        """All threads wait for each other, and tcgen05 operations follow those that are complete."""
        self.emit("tcgen05.fence::before_thread_sync")
        self.everyone()
        self.emit("tcgen05.fence::after_thread_sync")

    @contextmanager
    def only(self, predicate: Any) -> Iterator[None]:
        skip = self.b.label()
        self.emit("bra", skip, guard=Guard(predicate, True))
        yield
        self.b.place(skip)

    def cell(self, column: int, lane: int = 0, base: Any = None) -> Address:
        return self.b.address(base or self.taddr, lane << 16 | column)

    @contextmanager
    def columns_of_lanes(self) -> Iterator[tuple[Any, Any]]:
        """A loop of the first four warps over all columns, 32 at a time: the first column, and the address."""
        with self.only(self.value("setp.lt.u32", self.tid, 128, type_="pred")):
            first, at, more = self.value("mov.u32", 0), self.value("mov.b32", self.mine), self.reg("pred")
            again = self.b.label()
            self.b.place(again)
            yield first, at
            self.emit("add.u32", first, first, 32)
            self.emit("add.u32", at, at, 32)
            self.emit("setp.lt.u32", more, first, self.columns)
            self.emit("bra", again, guard=Guard(more))

    def fill(self) -> None:
        """Poison in every cell."""
        with self.columns_of_lanes() as (first, at):
            word = self.value("add.u32", self.value("mad.lo.u32", self.tid, COLUMNS, 0x3AD00000), first)
            words = [self.value("add.u32", word, i) for i in range(32)]
            self.emit("tcgen05.st.sync.aligned.32x32b.x32.b32", self.cell(0, 0, at), words)
        with self.only(self.value("setp.lt.u32", self.tid, 128, type_="pred")):
            self.emit("tcgen05.wait::st.sync.aligned")
        self.handover()

    def cp(self, column: int, at: int, shape: str, *, rows: int, lane: int = 0, formats: str = "") -> None:
        self.emit(
            f"tcgen05.cp.cta_group::{self.group}.{shape}{formats}", self.cell(column, lane), k_descriptor(at, rows)
        )

    def mma(
        self, kind: str, a: Any, b: int, idesc: int, *, d: Any = None, add: bool = False, form: str = "",
        tail: list[Any] | None = None, meta: Any = None, mask: list[Any] | None = None, scale_d: int | None = None,
    ) -> None:  # fmt: skip
        """`form` holds what stands between tcgen05.mma and the operands besides the group: "", ".ws", …"""
        head, _, rest = form.partition("|")
        enable = self.value("setp.ne.u32", self.tid, self.tid if not add else 0xFFFFFF, type_="pred")
        operands: list[Any] = [d or self.cell(0), a, b, *([meta] if meta is not None else []), idesc]
        operands += [mask] if mask is not None else []
        operands += [*(tail or []), enable] + ([scale_d] if scale_d is not None else [])
        self.emit(f"tcgen05.mma{head}.cta_group::{self.group}.kind::{kind}{rest}", *operands)

    def commit(self, at: int = DONE) -> None:
        op = "mbarrier::arrive::one.shared::cluster"
        if self.group == 2:
            both = self.reg("u16")
            self.emit("mov.u16", both, 3)
            self.emit(f"tcgen05.commit.cta_group::2.{op}.multicast::cluster.b64", self.at(at), both)
        else:
            self.emit(f"tcgen05.commit.cta_group::1.{op}.b64", self.at(at))

    def done(self) -> None:
        """Everyone waits for the next commit."""
        self.wait(self.at(DONE), self.phase & 1)
        self.phase += 1
        self.emit("tcgen05.fence::after_thread_sync")

    def dump(self) -> None:
        """All cells to global memory."""
        with self.columns_of_lanes() as (first, at):
            row = self.reg("b64")
            lane = self.value("mad.lo.u32", self.rank, 128, self.tid)
            self.emit("mad.wide.u32", row, self.value("mad.lo.u32", lane, COLUMNS, first), 4, self.out)
            words = self.regs("b32", 32)
            self.emit("tcgen05.ld.sync.aligned.32x32b.x32.b32", words, self.cell(0, 0, at))
            self.emit("tcgen05.wait::ld.sync.aligned")
            for i in range(0, 32, 4):
                self.emit("st.global.v4.b32", self.b.address(row, 4 * i), words[i : i + 4])

    def free(self) -> None:
        self.handover()
        self.emit(
            f"tcgen05.dealloc.cta_group::{self.group}.sync.aligned.b32", self.taddr, self.columns, guard=self.warp0
        )

    def finish(self, **how: Any) -> np.ndarray:
        """The end of most tests: commit by the leader is assumed to be issued; wait, dump, free, run."""
        self.done()
        self.dump()
        self.free()
        return self.run(**how)["dump"]


def idesc(kind: str, **fields: Any) -> int:
    return encode_idesc(kind, **fields)
