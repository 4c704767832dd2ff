"""Mutants of a kernel's printed PTX: one fence, wait, arrival or commit deleted, one bit of a descriptor flipped.

`outcome` runs one on the virtual GPU and says whether the checks report it, the result changes, or neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import smalti as sm
from smalti.errors import SmaltiError
from smalti.lang.call import launch_of
from smalti.ptx.module import Block, Immediate, Instruction, Module
from smalti.ptx.parse import parse
from smalti.run.execute import run
from smalti.run.launch import Launch

# Families whose deletion must be noticed. What is not here computes values: deleting it is not a mistake of ordering.
SYNCHRONISATION = (
    "fence.", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group", "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "mbarrier.init", "mbarrier.arrive", "mbarrier.expect_tx", "mbarrier.try_wait", "bar.sync", "bar.warp.sync",
    "barrier.cluster", "tcgen05.fence", "tcgen05.wait", "tcgen05.commit", "tcgen05.dealloc", "setmaxnreg",
    "tcgen05.relinquish",
)  # fmt: skip
IDESC_BITS = 32


@dataclass(frozen=True)
class Mutant:
    """`what` was done to instruction number `place` (in order of the text); `line` is the kernel's Python line."""

    what: str
    place: int
    line: str
    module: Module


def deletions(text: str) -> Iterator[Mutant]:
    """Each synchronising instruction deleted in turn; a wait becomes one that finds its phase complete."""
    for place, instruction in enumerate(_instructions(parse(text))):
        if not instruction.opcode.startswith(SYNCHRONISATION):
            continue
        module = parse(text)
        block, index = _find(module, place)
        found = block.statements[index]
        assert isinstance(found, Instruction)
        if found.opcode.startswith("mbarrier.try_wait"):
            done = Immediate(0)
            block.statements[index] = Instruction(
                "setp.eq.u32", (found.operands[0], done, done), found.guard, found.loc
            )
        else:
            del block.statements[index]
        yield Mutant(f"without {found.opcode}", place, str(found.loc), module)


def descriptor_flips(text: str) -> Iterator[Mutant]:
    """Each bit of each instruction descriptor, and of the constant parts of matrix descriptors."""
    for place, instruction in enumerate(_instructions(parse(text))):
        for operand, bits in _constants(instruction):
            for bit in bits:
                module = parse(text)
                block, index = _find(module, place)
                found = block.statements[index]
                assert isinstance(found, Instruction)
                operands = list(found.operands)
                given = operands[operand]
                assert isinstance(given, Immediate)
                operands[operand] = Immediate(given.value ^ 1 << bit)
                block.statements[index] = replace_operands(found, operands)
                yield Mutant(f"bit {bit} of operand {operand} of {found.opcode} flipped", place, str(found.loc), module)


def _constants(instruction: Instruction) -> Iterator[tuple[int, range]]:
    """Immediate operands that are descriptors or halves of them: (operand, bits to flip)."""
    if instruction.opcode.startswith("tcgen05.mma"):
        for n, o in enumerate(instruction.operands):
            if isinstance(o, Immediate) and o.value > 0xFFFF:
                yield n, range(IDESC_BITS)
    elif instruction.opcode in ("or.b32", "mov.u32", "mov.b32"):
        for n, o in enumerate(instruction.operands):
            if isinstance(o, Immediate) and o.value > 0xFFFF and o.value != 0xFFFFFFFF:
                yield n, range(32)


def replace_operands(instruction: Instruction, operands: list[Any]) -> Instruction:
    return Instruction(instruction.opcode, tuple(operands), instruction.guard, instruction.loc)


def _instructions(module: Module) -> list[Instruction]:
    body = module.functions()[0].body
    assert body is not None
    return list(body.instructions())


def _find(module: Module, place: int) -> tuple[Block, int]:
    """The block and position of instruction number `place`."""
    body = module.functions()[0].body
    assert body is not None
    left = place

    def search(block: Block) -> tuple[Block, int] | None:
        nonlocal left
        for i, s in enumerate(block.statements):
            if isinstance(s, Block):
                found = search(s)
                if found is not None:
                    return found
            elif isinstance(s, Instruction):
                if left == 0:
                    return block, i
                left -= 1
        return None

    found = search(body)
    assert found is not None
    return found


def outcome(module: Module, launch: Launch, wanted: np.ndarray, arch: str, seeds: tuple[int | None, ...]) -> str:
    """ "reported: CODE", "changed", or "survived"."""
    for seed in seeds:
        try:
            result = run(module, launch, f"virtual:{arch}", seed=seed)
        except SmaltiError as refusal:
            return f"reported: {refusal.code}"
        (got,) = result.outputs.values()
        if got.tobytes() != wanted.tobytes():
            return "changed"
    return "survived"


# -- the kernels, in their smallest shapes that use every part of them ------------------------------------


def hopper() -> tuple[Any, Any, str]:
    """Six tiles that one CTA works through, three steps of K, ragged edges, D leaving in two parts."""
    from smalti.ops.matmul_hopper_host import prepare
    from smalti.run.dtypes import from_bits

    r = np.random.default_rng(1)
    a, b = (
        from_bits((r.integers(-3, 4, s).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), "bf16")
        for s in ((136, 136), (136, 80))
    )
    p = prepare(a, b, dtype="f32", options={"tile": (64, 32, 64), "stages": 2, "parts": 2})
    traced, launch, _ = launch_of(p.kernel, p.arrays, "virtual:sm_90a", p.read_as, {"d": p.result, **p.options})
    return traced, replace(launch, grid=(1, 1, 1)), "sm_90a"


def blackwell() -> tuple[Any, Any, str]:
    """Four tiles that one CTA works through, four steps of K, the last one partial; D leaves in two parts."""
    from smalti.ops.matmul_blackwell_host import prepare

    r = np.random.default_rng(2)
    a, b = (
        r.integers(-3, 4, s).astype(np.float32) * np.exp2(r.integers(-3, 4, s[:1] + (1,))).astype(np.float32)
        for s in ((130, 416), (100, 416))
    )
    options = {"tile": (128, 64, 128), "stages": 2, "slots": 1, "outs": 1}
    p = prepare(sm.quantize(a, "mxfp8"), sm.quantize(np.ascontiguousarray(b.T), "mxfp8", axis=0), options=options)
    traced, launch, _ = launch_of(p.kernel, p.arrays, "virtual:sm_100a", p.read_as, {"d": p.result, **p.options})
    return traced, replace(launch, grid=(1, 1, 1)), "sm_100a"


KERNELS = {"hopper": hopper, "blackwell": blackwell}
