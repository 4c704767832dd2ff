"""Launch files: what they say becomes a launch, and what is wrong in them is refused at its place."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.errors import SmaltiError
from smalti.layout.tensor_map import TensorMap
from smalti.run import launch_file, launch_save
from smalti.run.launch import MapOf, Pointer, Scalar, Scratch, Struct
from smalti.run.launch_file import load, parse

FULL = {
    "format": 1,
    "about": "a launch with everything in it",
    "entry": "k",
    "grid": [4, 2],
    "block": [128],
    "cluster": [2, 1, 1],
    "shared": 1024,
    "buffers": {
        "a": {"dtype": "bf16", "shape": [32, 64], "data": {"iota": {"start": -3, "step": 2, "modulo": 5}}},
        "d": {
            "dtype": "f32",
            "shape": [2, 3],
            "output": True,
            "expected": [[1, 2.5, -3], [0.5, 1e10, 0]],
            "tolerance": {"relative": 0.5},
        },
    },
    "params": [
        {"pointer": "d", "offset": 4},
        {"scalar": "s32", "value": -7},
        {
            "tensor_map": {
                "buffer": "a",
                "type": "bf16",
                "size": [64, 32],
                "stride": [128],
                "box": [64, 8],
                "swizzle": "128B",
            }
        },
        {"scratch": 4096},
        {
            "struct": {
                "size": 24,
                "bytes": "0102",
                "at": [{"byte": 8, "pointer": "d"}, {"byte": 16, "scalar": "f32", "value": 1}],
            }
        },
    ],
}


def read(tmp_path, **changes):
    return parse(json.dumps({**FULL, **changes}), tmp_path)


def buffer(tmp_path, **fields):
    one = {"dtype": "u8", "shape": [4], **fields}
    return read(tmp_path, buffers={"x": one}, params=[]).buffers["x"]


def test_everything(tmp_path):
    (tmp_path / "launch.json").write_text(json.dumps(FULL))
    launch = load(tmp_path / "launch.json")
    assert (launch.entry, launch.grid, launch.block, launch.cluster) == ("k", (4, 2, 1), (128, 1, 1), (2, 1, 1))
    assert launch.shared == 1024
    a, d = launch.buffers["a"], launch.buffers["d"]
    values = a.array_in(a.data).astype(np.float32)
    assert values.reshape(-1)[:7].tolist() == [-3, -1, 1, 3, 5, -3, -1]
    assert d.data is None and d.output and d.tolerance == (0, 0.5)
    assert d.expected.view(np.float32).tolist() == [[1, 2.5, -3], [0.5, 1e10, 0]]
    assert launch.params == (
        Pointer("d", 4),
        Scalar("s32", -7),
        MapOf("a", TensorMap("bf16", (64, 32), (128,), (64, 8), swizzle="128B")),
        Scratch(4096),
        Struct(b"\x01\x02" + bytes(22), ((8, Pointer("d")), (16, Scalar("f32", 1)))),
    )


# -- data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "bytes_"),
    [
        ("u8", [3], [1, 2, 255], "0102ff"),
        ("s8", [3], [-1, -128, 127], "ff807f"),
        ("s4", [3], [-1, -8, 7], "8f07"),
        ("u64", [1], [2**64 - 1], "ffffffffffffffff"),
        ("f16", [2, 1], [[1], [-2]], "003c00c0"),
        ("bf16", [2], 1.5, "c03fc03f"),
        ("e4m3", [3], [1, 448, 1000], "387e7e"),  # saturates, as the format has no infinity
        ("e2m1", [5], [0.5, 1, -6, 0, 4], "2" + "1" + "0f" + "06"),
        ("ue8m0", [2], [1, 0.25], "7f7d"),
        ("tf32", [1], 1.0, "0000803f"),
        ("u16", [2], {"byte": 171}, "abababab"),
        ("e2m1", [3], {"byte": 0x57}, "7707"),
        ("s16", [3], {"iota": {"start": 5, "step": -3}}, "05000200ffff"),
        ("f64", [], 2, "0000000000000040"),
        ("u8", [0], [], ""),
    ],
)
def test_numbers_become_bytes(tmp_path, dtype, shape, data, bytes_):
    made = buffer(tmp_path, dtype=dtype, shape=shape, data=data)
    assert made.data.tobytes().hex() == bytes_


def splitmix(seed, index):
    """The upper half of SplitMix64's word, in plain integers."""
    mask = (1 << 64) - 1
    z = ((seed << 32) + index + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return (z ^ z >> 31) >> 32


def test_random_data_depends_on_seed_and_index_alone(tmp_path):
    rule = {"integers": {"seed": 7, "low": -3, "high": 3}}
    small = buffer(tmp_path, dtype="s8", shape=[10], data=rule)
    large = buffer(tmp_path, dtype="s8", shape=[100, 100], data=rule)
    values = large.array_in(large.data)
    assert small.array_in(small.data).tolist() == [-3 + splitmix(7, n) % 7 for n in range(10)]
    assert (values.reshape(-1)[:10] == small.array_in(small.data)).all()
    assert set(np.unique(values)) == set(range(-3, 4))
    assert np.bincount(values.reshape(-1) + 3).min() > 1200
    other = buffer(tmp_path, dtype="s8", shape=[10], data={"integers": {"seed": 8, "low": -3, "high": 3}})
    assert (other.data != small.data).any()
    codes = buffer(tmp_path, dtype="e4m3", shape=[10_000], data={"codes": {"seed": 1}})
    assert len(np.unique(codes.data)) == 256
    nibbles = buffer(tmp_path, dtype="e2m1", shape=[1000], data={"codes": {"seed": 1}})
    assert len(np.unique(nibbles.bits_in(nibbles.data))) == 16


def test_array_files(tmp_path):
    (tmp_path / "sub").mkdir()
    want = np.arange(6).reshape(2, 3).astype(ml_dtypes.float8_e4m3fn)
    np.save(tmp_path / "sub" / "x.npy", want)
    np.save(tmp_path / "raw.npy", want.view(np.uint8))
    for name in ("sub/x.npy", "raw.npy", "sub/../raw.npy"):
        made = buffer(tmp_path, dtype="e4m3", shape=[2, 3], data={"npy": name})
        assert (made.array_in(made.data) == want).all()


def test_strided_buffers_keep_their_gaps(tmp_path):
    made = buffer(tmp_path, dtype="u8", shape=[2, 2], strides=[5, 1], data=[[1, 2], [3, 4]])
    assert made.data.tolist() == [1, 2, 0xCC, 0xCC, 0xCC, 3, 4]
    column = buffer(tmp_path, dtype="u8", shape=[2, 3], strides=[1, 2], data=[[1, 2, 3], [4, 5, 6]])
    assert column.data.tolist() == [1, 4, 2, 5, 3, 6]
    packed = buffer(tmp_path, dtype="e2m1", shape=[2, 2], strides=[4, 1], data=[[1, 2], [3, 4]])
    assert packed.data.tolist() == [0x42, 0xCC, 0x65]


# -- writing -------------------------------------------------------------------------------------------


def plain(value):
    """A launch as nested tuples that compare by value."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if hasattr(value, "__dataclass_fields__"):
        return type(value).__name__, *(plain(getattr(value, f)) for f in value.__dataclass_fields__)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def test_what_is_written_reads_back_the_same(tmp_path):
    more = {
        **FULL["buffers"],
        "s": {"dtype": "e2m1", "shape": [3, 2], "strides": [4, 1], "data": {"codes": {"seed": 3}}},
        "q": {"dtype": "e3m2", "shape": [8], "dense": True, "data": {"codes": {"seed": 4}}, "expected": 1},
        "z": {"dtype": "s64", "shape": [2], "data": 0},
    }
    image = {"type": "f16", "size": [64, 8, 8, 2], "stride": [128, 1024, 8192], "mode": "im2col", "channels": 64}
    image |= {"buffer": "i", "lower": [-1, -2], "upper": [1, 0], "pixels": 16, "element_stride": [1, 2, 2, 1]}
    more["i"] = {"dtype": "f16", "shape": [8192]}
    launch = read(tmp_path, buffers=more, params=[*FULL["params"], {"tensor_map": image, "offset": 0}])
    launch_save.save(tmp_path / "out.json", launch, "written by a test")
    assert plain(load(tmp_path / "out.json")) == plain(launch)
    written = {f.name for f in tmp_path.iterdir()}
    assert written == {"out.json"} | {f"out-{n}.npy" for n in ("a", "s", "q", "d-expected", "q-expected")}


# -- refusals ------------------------------------------------------------------------------------------


def changed(path, value):
    """FULL with one value replaced; path is a list of keys."""
    data = json.loads(json.dumps(FULL))
    at = data
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["entry"], None, r"the file: field 'entry' is missing"),
        (["entry"], 3, r"entry: must be a string"),
        (["gird"], [1], r"the file: unknown field 'gird'"),
        (["grid"], [1, 2, 3, 4], r"grid: must be a list of 1 to 3"),
        (["grid"], [True], r"grid\[0\]: must be an integer from 1"),
        (["block"], ["128"], r"block\[0\]: must be an integer"),
        (["shared"], 1.5, r"shared: must be an integer"),
        (["buffers"], [], r"buffers: must be an object"),
        (["buffers", "a b"], {}, r"buffers.a b: a buffer's name must be an identifier"),
        (["buffers", "d", "dtype"], "float32", r"buffers.d.dtype: 'float32' is none of"),
        (["buffers", "d", "output"], 1, r"buffers.d.output: must be true or false"),
        (["buffers", "d", "strides"], [1], r"buffers.d.strides: must be a list of 2 to 2"),
        (["buffers", "d", "strides"], [2, 1], r"buffers.d.strides: elements of shape \[2, 3\] overlap"),
        (["buffers", "d", "data"], {"npz": "x"}, r"buffers.d.data: must be numbers or an object with one of"),
        (["buffers", "d", "data"], {"byte": 256}, r"buffers.d.data.byte: must be an integer from 0 to 255"),
        (["buffers", "d", "data"], True, r"buffers.d.data: must be numbers"),
        (["buffers", "d", "expected"], [["1"]], r"buffers.d.expected: must be a number"),
        (["buffers", "a", "data"], {"iota": {"stop": 3}}, r"buffers.a.data.iota: unknown field 'stop'"),
        (["params", 0], {"pointer": "d", "scalar": "u8"}, r"params\[0\]: must be an object with one of"),
        (["params", 0, "offset"], -4, r"params\[0\].offset: must be an integer from 0"),
        (["params", 1, "scalar"], "int", r"params\[1\].scalar: 'int' is none of"),
        (["params", 2, "tensor_map", "boxes"], [1], r"params\[2\].tensor_map: unknown field 'boxes'"),
        (["params", 2, "tensor_map", "box"], [64, 8.0], r"params\[2\].tensor_map.box\[1\]: must be an integer"),
        (["params", 4, "struct", "bytes"], "0x", r"params\[4\].struct.bytes: must be a string of hexadecimal"),
        (["params", 4, "struct", "bytes"], "00" * 25, r"params\[4\].struct: bytes has 25 bytes, size is 24"),
        (["params", 4, "struct", "size"], 19, r"params\[4\].struct: a parameter of 4 bytes at 16 reaches past"),
        (["params", 4, "struct", "at", 0], {"byte": 0, "struct": {"size": 1}}, r"at\[0\]: a struct inside a struct"),
    ],
)
def test_wrong_fields_are_named(tmp_path, path, value, where):
    parse(changed(["shared"], 0), tmp_path)
    with pytest.raises(SmaltiError, match=rf"SML0160: launch file <launch>: .*{where}"):
        parse(changed(path, value), tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2", "nul", '{"format": 1} x', "[" * 100_000])
def test_text_that_is_no_json(tmp_path, text):
    with pytest.raises(SmaltiError, match=r"SML0160.*no JSON"):
        parse(text, tmp_path)


@pytest.mark.parametrize("number", [None, 0, 2, "1"])
def test_other_format_numbers(tmp_path, number):
    with pytest.raises(SmaltiError, match="SML0161"):
        read(tmp_path, format=number)


def test_data_files_stay_below_the_folder(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    np.save(tmp_path / "x.npy", np.zeros(4, np.uint8))
    (home / "link.npy").symlink_to(tmp_path / "x.npy")
    for name in ("../x.npy", str(tmp_path / "x.npy"), "sub/../../x.npy", "link.npy"):
        with pytest.raises(SmaltiError, match="SML0162"):
            buffer(home, data={"npy": name})
    np.save(home / "x.npy", np.zeros(4, np.uint8))
    assert buffer(home, data={"npy": "x.npy"}).data.size == 4


def test_values_of_other_codes(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 2), np.uint8))
    for fields, code in (
        ({"data": {"npy": "x.npy"}}, "SML0163"),
        ({"data": [1, 2, 3]}, "SML0163"),
        ({"data": {"npy": "y.npy"}}, "SML0115"),
        ({"dtype": "f32", "data": {"npy": "x.npy"}}, "SML0113"),
        ({"data": [1, 2, 3, 256]}, "SML0160"),
        ({"data": [1, 2, 3, 0.5]}, "SML0160"),
        ({"data": {"iota": {"start": 253}}}, "SML0160"),
        ({"shape": [1 << 33]}, "SML0164"),
        ({"shape": [1 << 40] * 8}, "SML0164"),
        ({"shape": [2], "strides": [1 << 40]}, "SML0164"),
        ({"shape": [1 << 17], "data": [0] * ((1 << 16) + 1)}, "SML0160"),
    ):
        with pytest.raises(SmaltiError, match=code):
            buffer(tmp_path, **fields)
    with pytest.raises(SmaltiError, match="SML0164"):
        read(tmp_path, params=[{"scratch": 1 << 29}, {"scratch": 1 << 29}])
    with pytest.raises(SmaltiError, match="SML0137"):
        parse(changed(["params", 2, "tensor_map", "swizzle"], "64B"), tmp_path)
    with pytest.raises(SmaltiError, match="SML0156"):
        parse(changed(["params", 2, "tensor_map", "size"], [64, 33]), tmp_path)


def test_the_file_itself(tmp_path, monkeypatch):
    with pytest.raises(SmaltiError, match="SML0115"):
        load(tmp_path / "none.json")
    (tmp_path / "launch.json").write_text(json.dumps(FULL))
    monkeypatch.setattr(launch_file, "LARGEST_FILE", 100)
    with pytest.raises(SmaltiError, match="SML0164"):
        load(tmp_path / "launch.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["a", "d", "u8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["size", "byte", "npy"]), inner),
    max_leaves=5,
)


def places(value, path=()):
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(places(FULL), key=str)), JSON)
def test_any_value_anywhere_is_taken_or_refused_with_a_code(tmp_path_factory, path, value):
    data = json.loads(json.dumps(FULL))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    try:
        parse(json.dumps(data), tmp_path_factory.getbasetemp())
    except SmaltiError:
        pass
