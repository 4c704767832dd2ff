"""Signatures, facts of operands, and how kernels take them."""

import re

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.lang.call import facts_of_call, prepare
from smalti.lang.signature import Facts, parse_signature


def test_parse():
    s = parse_signature("a[M,K]:scaled, b[N, 64] -> d[M,N], e[M]")
    assert [(o.name, o.dims, o.scaled, o.written) for o in s.operands] == [
        ("a", ("M", "K"), True, False),
        ("b", ("N", 64), False, False),
        ("d", ("M", "N"), False, True),
        ("e", ("M",), False, True),
    ]
    assert s.dims == ("M", "K", "N")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a[M]", "no '->'"),
        ("a[M] -> ", "nothing is written"),
        ("a[M], a[N] -> d[M]", "appears twice"),
        ("a[M+1] -> d[M]", "'M+1' is no dimension"),
        ("a(M) -> d[M]", "is no name[dimensions]"),
        ("a[M]:packed -> d[M]", "':packed' is unknown"),
        ("a[M] b[N] -> d[M]", "comma"),
    ],
)
def test_refused(text, reason):
    with pytest.raises(SmaltiError, match=re.escape(reason)) as raised:
        parse_signature(text)
    assert raised.value.code == "SML0320"


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
def product(a, b, d):
    assert a.rank == 2


def known(*arrays, read_as=None, **results):
    return facts_of_call(product, arrays, read_as or {}, results)


def test_facts_of_arrays():
    a, b = np.zeros((6, 40), np.float16), np.zeros((40, 8), np.float16)
    assert known(a, b.T) == {
        "a": Facts(sm.f16, -1, 16),
        "b": Facts(sm.f16, 0, 16),
        "d": Facts(sm.f16, -1, 16),
    }
    assert known(a[:, :38], b[:38].T)["a"] == Facts(sm.f16, -1, 16)  # a view keeps its pitch of 80 bytes
    odd = np.zeros((6, 9), np.float16)
    assert known(odd, odd)["a"].alignment == 2
    assert known(odd, odd)["d"].alignment == 4  # 6 columns of 2 bytes
    assert known(a.astype(np.float32), b.T.astype(np.float32), read_as={"a": "tf32"})["a"].dtype is sm.tf32
    assert known(a, b.T, d="f32")["d"].dtype is sm.f32


def test_default_results():
    for name, result in (("e4m3", "f32"), ("s8", "s32"), ("tf32", "f32"), ("bf16", "bf16")):
        assert product.trace(name, name).facts["d"].dtype.name == result


def test_copies_only_where_needed():
    a = np.arange(48, dtype=np.float32).reshape(6, 8)
    made = prepare(product, (a[:, ::2], a[::-1, :4]), {}, {})
    assert made.operands["a"].copied and made.operands["b"].copied
    np.testing.assert_array_equal(made.operands["a"].data.view(np.float32).reshape(6, 4), a[:, ::2])
    np.testing.assert_array_equal(made.operands["b"].data.view(np.float32).reshape(6, 4), a[::-1, :4])
    plain = prepare(product, (a[:, :4], a[2:4, :4]), {}, {})
    assert not plain.operands["a"].copied and plain.operands["a"].strides == (32, 4)
    assert plain.operands["a"].data.size == 4 * (5 * 8 + 4)  # from the first element to the last, no further


def test_one_row_and_no_row():
    row = np.zeros((1, 9), ml_dtypes.bfloat16)
    assert known(row, row)["a"].alignment == 16  # a single row has no pitch that could be wrong
    empty = np.zeros((5, 0), ml_dtypes.bfloat16)
    assert known(empty, empty)["a"].alignment == 16


def test_sizes_must_agree():
    with pytest.raises(SmaltiError) as raised:
        known(np.zeros((4, 8), np.float16), np.zeros((4, 16), np.float16))
    assert raised.value.code == "SML0370"
    assert (raised.value.params["first"], raised.value.params["second"]) == (8, 16)


def test_trace_takes_names_facts_and_arrays():
    array = np.zeros((64, 64), ml_dtypes.bfloat16)
    traced = [product.trace("bf16", sm.bf16, d="f32"), product.trace(array, sm.facts("bf16"), d=sm.f32)]
    assert traced[0] is traced[1]  # the same facts: traced once
    assert product.trace("bf16", "bf16", d="bf16") is not traced[0]
