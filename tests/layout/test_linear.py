"""The algebra: values against plain loops, inverse and composition as properties, refusals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.errors import SmaltiError
from smalti.layout.linear import Layout
from smalti.layout.shared import swizzle_layout


def refusal(call, code):
    with pytest.raises(SmaltiError) as caught:
        call()
    assert caught.value.code == code


def plain(inputs, outputs, indices):
    """Sum of digit * stride, one position at a time."""
    total = dict.fromkeys(outputs, 0)
    for name, digits in inputs.items():
        index = indices[name]
        for size, strides in digits:
            index, digit = divmod(index, size)
            for output, stride in strides.items():
                total[output] += digit * stride
    return [total[o] for o in outputs]


digit = st.tuples(
    st.sampled_from([1, 2, 2, 3, 4, 5, 6]),
    st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 40), max_size=2),
)


@settings(deadline=None)
@given(a=st.lists(digit, max_size=3), b=st.lists(digit, max_size=2))
def test_values_are_sums(a, b):
    inputs = {"a": a, "b": b}
    layout = Layout(inputs, ["x", "y"])
    values = layout.offsets()
    sizes = layout.inputs
    assert values.shape == (2, sizes["a"], sizes["b"])
    for i, j in itertools.product(range(sizes["a"]), range(sizes["b"])):
        assert values[:, i, j].tolist() == plain(inputs, ["x", "y"], {"a": i, "b": j})
        assert layout(a=i, b=j).tolist() == values[:, i, j].tolist()


@st.composite
def nested(draw):
    """A bijection onto a box: a factorisation of it, dealt out to the indices in any order."""
    digits = []
    for output in ("x", "y"):
        weight = 1
        for size in draw(st.lists(st.sampled_from([2, 2, 2, 3, 4, 5]), max_size=4)):
            digits.append((size, {output: weight}))
            weight *= size
    inputs = {"a": [], "b": []}
    for d in draw(st.permutations(digits)):
        inputs[draw(st.sampled_from(["a", "b"]))].append(d)
    return Layout(inputs, ["x", "y"])


@settings(max_examples=200, deadline=None)
@given(nested())
def test_invert_goes_there_and_back(layout):
    try:
        back = layout.invert()
    except SmaltiError as refused:  # strides that are no powers of two may need sums that no layout has
        assert refused.code == "SML0403"
        return
    there = layout.then(back).offsets()
    assert np.array_equal(there, np.indices(tuple(layout.inputs.values())))
    assert back.invert() == layout
    x, y = np.indices(tuple(layout.extents.values()))
    assert np.array_equal(layout.locate(x=x, y=y), back.offsets())


def test_nested_strides_do_invert():
    layout = Layout({"m": [(64, {"lane": 1})], "n": [(8, {"c": 1}), (3, {"c": 8}), (2, {"lane": 64})]}, ["lane", "c"])
    assert layout.invert().then(layout).offsets()[1, 64, 3] == 3
    assert layout.invert().inputs == {"lane": 128, "c": 24}


@st.composite
def invertible(draw, bits=6):
    """A random invertible GF(2) map, as a product of elementary ones."""
    columns = [1 << i for i in range(bits)]
    for _ in range(draw(st.integers(0, 12))):
        i, j = draw(st.integers(0, bits - 1)), draw(st.integers(0, bits - 1))
        if i != j:
            columns[i] ^= columns[j]
    return Layout.linear({"o": [{"o": c} for c in draw(st.permutations(columns))]}, ["o"])


@settings(deadline=None)
@given(invertible(), invertible())
def test_linear_maps_are_a_group(f, g):
    both = f.then(g)
    assert both.is_linear
    assert both.offsets().tolist() == [int(g(o=f(o=i))) for i in range(64)]
    assert f.then(f.invert()).offsets().tolist() == list(range(64))
    assert both.invert() == g.invert().then(f.invert())
    assert hash(f) == hash(f.invert().invert())


@pytest.mark.parametrize("rows", [8, 24, 200])
def test_tile_then_swizzle(rows):
    tile = Layout(
        {"row": [(rows, {"offset": 128})], "byte": [(128, {"offset": 1}), (3, {"offset": rows * 128})]},
        ["offset"],
    )
    mixed = tile.then(swizzle_layout("128B", 1 << 17))
    for row, byte in ((0, 0), (7, 127), (rows - 1, 300), (3, 130)):
        linear = byte // 128 * rows * 128 + row * 128 + byte % 128
        assert mixed(row=row, byte=byte) == linear ^ (linear >> 7 & 7) << 4


def test_indices_broadcast():
    layout = Layout({"a": [(4, {"x": 1})], "b": [(3, {"y": 1})]}, ["x", "y"])
    x, y = layout(a=np.arange(4)[:, None], b=[2, 0])
    assert x.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert y.tolist() == [[2, 0]] * 4


def test_outputs_pass_through():
    f = Layout({"i": [(4, {"x": 1}), (3, {"y": 1})]}, ["x", "y"])
    g = Layout({"x": [(4, {"z": 5})]}, ["z"])
    assert f.then(g).outputs == ("z", "y")
    assert f.then(g)(i=7).tolist() == [15, 1]


def test_equality_is_of_values():
    one = Layout({"i": [(2, {"o": 1}), (4, {"o": 2})]}, ["o"])
    two = Layout({"i": [(8, {"o": 1})]}, ["o"])
    assert one == two and hash(one) == hash(two) and len({one, two}) == 1
    # added and xor-ed digits that never collide are the same map, too: 3 + 3 * 2 as 9, and 6 positions of it
    three = Layout({"i": [(2, {"o": 3}), (3, {"o": 6})]}, ["o"])
    assert three == Layout({"i": [(6, {"o": 3})]}, ["o"]) and hash(three) == hash(Layout({"i": [(6, {"o": 3})]}, ["o"]))
    assert one != Layout({"i": [(8, {"o": 2})]}, ["o"])
    assert one != Layout({"j": [(8, {"o": 1})]}, ["o"])
    assert one != Layout({"i": [(4, {"o": 1})]}, ["o"])


def test_text():
    layout = Layout({"row": [(8, {"o": 16}), (25, {"o": 128})], "k": [(16, {"o": 1})]}, ["o"])
    assert str(layout).splitlines() == [
        "row 200, k 16 -> o",
        "  row  8 by o*16, 25 by o*128",
        "  k    16 by o*1",
    ]
    assert "2 by offset^144" in str(swizzle_layout("128B"))


def test_offsets_are_cached_and_read_only():
    layout = Layout({"i": [(8, {"o": 1})]}, ["o"])
    assert layout.offsets().base is layout.offsets().base
    with pytest.raises(ValueError, match="read-only"):
        layout.offsets()[0] = 1


def test_refusals():
    good = Layout({"r": [(4, {"o": 8})], "c": [(8, {"o": 1})]}, ["o"])
    good.invert()
    refusal(lambda: Layout({"r": [(4, {"o": 4})], "c": [(8, {"o": 1})]}, ["o"]).invert(), "SML0401")
    refusal(lambda: Layout({"r": [(4, {"o": 0})]}, ["o"]).locate(o=0), "SML0401")
    refusal(lambda: Layout({"r": [(4, {"o": 9})], "c": [(8, {"o": 1})]}, ["o"]).invert(), "SML0402")
    refusal(lambda: Layout({"r": [(9, {"offset": 144})]}, ["offset"]).then(swizzle_layout("128B", 2048)), "SML0403")
    refusal(lambda: good(r=1), "SML0404")
    refusal(lambda: good.then(swizzle_layout("none")), "SML0404")
    refusal(lambda: Layout({"r": [(4, {"p": 8})]}, ["o"]), "SML0404")
    refusal(lambda: good(r=4, c=0), "SML0405")
    refusal(lambda: good(r=0, c=-1), "SML0405")
    refusal(lambda: Layout({"r": [(4, {"o": -8})]}, ["o"]), "SML0405")
    refusal(lambda: Layout({"r": [(1 << 23, {"o": 1})]}, ["o"]).offsets(), "SML0405")
    refusal(lambda: Layout({"offset": [(2048, {"offset": 1})]}, ["offset"]).then(swizzle_layout("32B")), "SML0405")
    with pytest.raises(IndexError):
        good(r=4, c=0)


def test_locate_says_where_nothing_is():
    layout = Layout({"m": [(16, {"lane": 1}), (4, {"lane": 32})]}, ["lane"])
    assert layout.locate(lane=[0, 15, 16, 31, 32, 111, 112, 500, -3]).tolist() == [0, 15, -1, -1, 16, 63, -1, -1, -1]
