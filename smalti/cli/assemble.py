"""`smalti assemble`: PTX to machine code, with resources, remarks, and what instructions came out."""

from __future__ import annotations

import argparse

NAME = "assemble"
HELP = "assemble PTX and show its resources and machine code"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ptx", help="PTX text")
    parser.add_argument("--arch", help="architecture to assemble for (default: the text's .target)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the cubin to this file")
    parser.add_argument("--sass", action="store_true", help="print the instructions, indented by loop depth")


def run(arguments: argparse.Namespace) -> int:
    """0 where nothing costs speed, 1 where ptxas serialised, ignored or spilled something."""
    from smalti.run.assemble import assemble
    from smalti.run.files import check_writable, read_text, write_aside
    from smalti.run.sass import inspect

    if arguments.output:
        check_writable(arguments.output)
    made = assemble(read_text(arguments.ptx), arguments.arch, name=arguments.ptx)
    code = inspect(made.cubin)
    print(f"assembler  ptxas {made.version} for {made.arch}")
    spilled = False
    for name, used in made.kernels.items():
        inside = len(code[name].spills_in_loops)
        spilled |= used.spill_stores + used.spill_loads > 0
        print(
            f"kernel     {name}: {used.registers} registers, {used.barriers} barriers, {used.shared} bytes of static "
            f"shared memory, {used.stack} bytes of stack, {used.spill_stores + used.spill_loads} bytes spilled, "
            f"{inside} local accesses in loops"
        )
        for opcode, n in sorted(code[name].tensor.items()):
            print(f"tensor     {name}: {n} {opcode}")
    for remark in made.advice:
        print(f"remark     {remark.code}: {remark.text}")
    if arguments.sass:
        for name, inspection in code.items():
            print(f"\n{name}:")
            for i in inspection.instructions:
                print(f"  {i.address:05x} {'  ' * i.depth}{i.guard + ' ' if i.guard else ''}{i.opcode} {i.operands}")
    if arguments.output:
        write_aside(arguments.output, lambda file: file.write(made.cubin))
        print(f"written    {arguments.output}")
    return 1 if made.losses or spilled else 0
