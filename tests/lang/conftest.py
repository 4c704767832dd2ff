"""Tracing small kernels, and reading what came out."""

import pytest

import smalti as sm


class Kit:
    """`kit.trace(function)` traces a function of (a, d) or of the given signature; `kit.opcodes` of the result."""

    @staticmethod
    def trace(function, *operands, signature="a[M,N] -> d[M,N]", arch="sm_90a", threads=128, **named):
        kernel = sm.kernel(signature, arch=arch, threads=threads)(function)
        return kernel.trace(*(operands or ("f32",)), **named)

    @staticmethod
    def instructions(traced):
        return list(traced.module.function(traced.entry).body.instructions())

    @classmethod
    def opcodes(cls, traced, head=""):
        return [i.opcode for i in cls.instructions(traced) if i.opcode.startswith(head)]


@pytest.fixture
def kit():
    return Kit
