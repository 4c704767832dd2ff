"""tidy on random programs: what they store is the same with and without it."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.ptx.module import (
    Address,
    Block,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Mark,
    Module,
    Not,
    Register,
    Special,
)
from smalti.ptx.tidy import tidy

OPERATIONS = {
    "add.s32": lambda a, b: (a + b) & 0xFFFFFFFF,
    "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, b: (a << (b & 31)) & 0xFFFFFFFF,
    "sub.s32": lambda a, b: (a - b) & 0xFFFFFFFF,
}


def execute(body, limit=400):
    """Runs a thread; gives what it stores, in order. Registers start with values of their own."""
    code, places = [], {}
    for s in body.walk():
        if isinstance(s, Mark):
            places[s.label] = len(code)
        elif isinstance(s, Instruction):
            code.append(s)
    values, stored = {}, []

    def read(o):
        if isinstance(o, Register):
            return values.get(o, int(o.name[2:]) * 1000 + 7)
        if isinstance(o, Not):
            return not read(o.register)
        return 5 if isinstance(o, Special) else o.value

    at = 0
    for _ in range(limit):
        if at >= len(code):
            return stored
        i = code[at]
        at += 1
        if i.guard is not None and bool(read(i.guard.register)) == i.guard.negated:
            continue
        if i.opcode == "bra":
            at = places[i.operands[0]]
        elif i.opcode == "st.local.b32":
            stored.append((i.operands[0].offset, read(i.operands[1])))
        elif i.opcode.startswith("mov"):
            values[i.operands[0]] = read(i.operands[1])
        elif i.opcode == "setp.lt.s32":
            values[i.operands[0]] = read(i.operands[1]) < read(i.operands[2])
        elif i.opcode == "selp.b32":
            values[i.operands[0]] = read(i.operands[1] if read(i.operands[3]) else i.operands[2])
        else:
            values[i.operands[0]] = OPERATIONS[i.opcode](read(i.operands[1]), read(i.operands[2]))
    return stored


@st.composite
def programs(draw):
    """Straight code, branches forwards and backwards, guards, registers written once and many times."""
    registers = [Register("b32", f"%r{n}") for n in range(draw(st.integers(3, 12)))]
    predicates = [Register("pred", f"%p{n}") for n in range(3)]
    labels = [Label(f"L{n}") for n in range(3)]
    r, p = st.sampled_from(registers), st.sampled_from(predicates)
    source = st.one_of(r, r, st.integers(0, 9).map(Immediate))
    guards = st.one_of(st.none(), st.none(), st.none(), st.builds(Guard, p, st.booleans()))
    statement = st.one_of(
        st.builds(lambda d, a: Instruction("mov.b32", (d, a)), r, source),
        st.builds(lambda d, a: Instruction("mov.b32", (d, a)), r, r),
        st.builds(lambda d: Instruction("mov.b32", (d, Special("tid.x"))), r),
        st.builds(lambda o, d, a, b: Instruction(o, (d, a, b)), st.sampled_from(list(OPERATIONS)), r, source, source),
        st.builds(lambda d, a, b: Instruction("setp.lt.s32", (d, a, b)), p, source, source),
        st.builds(lambda d, a, b, c: Instruction("selp.b32", (d, a, b, c)), r, source, source, p | p.map(Not)),
        st.builds(lambda n, a: Instruction("st.local.b32", (Address(None, n), a)), st.integers(0, 3), r),
        st.builds(lambda label: Instruction("bra", (label,)), st.sampled_from(labels)),
    )
    statements = []
    for i, guard in draw(st.lists(st.tuples(statement, guards), min_size=3, max_size=30)):
        i.guard = guard
        statements.append(copy.copy(i))
    for label in labels:
        statements.insert(draw(st.integers(0, len(statements))), Mark(label))
    statements += [Instruction("st.local.b32", (Address(None, n), x)) for n, x in enumerate(registers[:3])]
    return statements


@given(programs())
@settings(max_examples=80, deadline=None)
def test_stores_are_the_same(statements):
    f = Function("k", body=Block(statements))
    before = execute(f.body)
    tidy(Module(items=[f]))
    after = execute(f.body)
    # Less code runs further within the same limit: compare as far as both got.
    shared = min(len(before), len(after))
    assert after[:shared] == before[:shared] and len(after) >= len(before)


def test_the_comparison_can_fail():
    x, y = Register("b32", "%r1"), Register("b32", "%r2")
    wrong = [Instruction("mov.b32", (x, Immediate(1))), Instruction("st.local.b32", (Address(None, 0), x))]
    right = [*wrong[:1], Instruction("mov.b32", (y, x)), Instruction("st.local.b32", (Address(None, 0), y))]
    assert execute(Block(wrong)) == execute(Block(right)) != execute(Block(right[1:]))
