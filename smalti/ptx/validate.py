"""Whether a module keeps the rules of PTX, architecture and version included, before any assembler sees it."""

from __future__ import annotations

from smalti.ptx import check
from smalti.ptx.isa import TABLE
from smalti.ptx.module import Module


def validate(module: Module) -> None:
    """Raise the first broken rule of `module`: SML0202-SML0206."""
    for function in module.functions():
        for i in function.body.instructions() if function.body else ():
            form = TABLE.find(i.opcode, i.operands)
            if form is not None:
                for problem in check.need_problems(i, form, module.target, module.version):
                    raise problem
                for problem in check.operand_problems(i, form):
                    raise problem
