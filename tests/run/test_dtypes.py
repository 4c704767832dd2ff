"""The dtype registry, the bytes of GPU memory, and .npy files of every format."""

import io
import os
import stat

import ml_dtypes
import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.numerics.formats import FORMATS
from smalti.run import npy
from smalti.run.dtypes import (
    DTYPES,
    SHOWN_AS,
    as_bits,
    from_bits,
    from_memory,
    memory_size,
    name_of,
    numpy_dtype,
    to_memory,
)
from smalti.run.files import write_aside

HELD = [n for n, h in DTYPES.items() if h.numpy]


def codes(name, count=64):
    """A different code in every place, as far as the format has them."""
    form = FORMATS[name]
    step = max(1, (1 << min(form.bits, 62)) // count)
    return (np.arange(count, dtype=np.uint64) * np.uint64(step) % np.uint64(1 << min(form.bits, 63))).astype(form.dtype)


def test_every_format_of_numerics_but_single_bits_is_held():
    assert set(DTYPES) == set(FORMATS) - {"b1"}
    for name, held in DTYPES.items():
        assert held.memory in (4, FORMATS[name].dtype.itemsize * 8)
        assert numpy_dtype(name).itemsize == FORMATS[name].dtype.itemsize


@pytest.mark.parametrize("name", DTYPES)
def test_bits_in_and_out(name):
    bits = codes(name).reshape(4, 16)
    array = from_bits(bits, name)
    back, found = as_bits(array, what="x")
    assert found == SHOWN_AS.get(name, name)
    assert back.dtype == bits.dtype and (back == bits).all()


@pytest.mark.parametrize("name", HELD)
def test_names(name):
    assert name_of(numpy_dtype(name)) == name
    if numpy_dtype(name).itemsize > 1 and name != "bf16":
        assert name_of(numpy_dtype(name).newbyteorder(">")) == name


def test_the_other_byte_order_keeps_the_values():
    array = np.array([1.5, -2.0], ">f4")
    bits, name = as_bits(array, what="x")
    assert name == "f32" and from_bits(bits, "f32").tolist() == [1.5, -2.0]


def test_strided_views_keep_their_shape():
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    bits, _ = as_bits(base[::2, 1::3], what="x")
    assert from_bits(bits, "f32").tolist() == [[1, 4], [13, 16]]


def test_declared_formats_need_the_same_width():
    assert as_bits(np.array([127, 255], np.uint8), what="s", dtype="ue8m0")[1] == "ue8m0"
    with pytest.raises(SmaltiError, match="SML0113"):
        as_bits(np.array([1.0], np.float32), what="s", dtype="ue8m0")
    with pytest.raises(SmaltiError, match="SML0110"):
        as_bits(np.array([1.0], np.float32), what="s", dtype="float")


@pytest.mark.parametrize("bad", [np.array([object()]), np.array(["a"]), np.array([1j]), np.array([True])])
def test_dtypes_that_are_no_numbers_of_the_gpu(bad):
    with pytest.raises(SmaltiError, match="SML0111"):
        as_bits(bad, what="x")


def test_arrays_of_other_libraries():
    class Jax:  # an array that NumPy can ask for, and that would refuse DLPack
        def __array__(self, dtype=None, copy=None):
            return np.array([1, 2], ml_dtypes.bfloat16)

        def __dlpack__(self, **_):
            raise BufferError

    bits, name = as_bits(Jax(), what="x")
    assert name == "bf16" and bits.tolist() == [0x3F80, 0x4000]


def test_torch():
    torch = pytest.importorskip("torch")
    bits, name = as_bits(torch.tensor([1.0, -2.0], dtype=torch.bfloat16), what="x")
    assert name == "bf16" and bits.tolist() == [0x3F80, 0xC000]
    packed = torch.tensor([[0x21, 0x43]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    bits, name = as_bits(packed, what="x")
    assert name == "e2m1" and bits.tolist() == [[1, 2, 3, 4]]


# -- memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("dense", [False, True])
def test_memory_round_trip(name, dense):
    bits = codes(name, 61)
    memory = to_memory(bits, name, dense)
    assert memory.dtype == np.uint8 and memory.size == memory_size(name, 61, dense)
    assert (from_memory(memory, name, 61, dense) == bits).all()


def test_bytes_in_memory():
    assert to_memory(np.array([1, 2, 3], np.uint8), "e2m1").tolist() == [0x21, 0x03]
    assert to_memory(np.array([0x3F80], np.uint16), "bf16").tolist() == [0x80, 0x3F]
    assert to_memory(np.array([1, 2], np.uint8), "e2m3").tolist() == [1, 2]
    assert to_memory(np.array([1, 2], np.uint8), "e2m3", dense=True).tolist() == [0x81, 0, 0]


# -- .npy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HELD)
def test_npy_files_of_every_format(name, tmp_path):
    array = from_bits(codes(name).reshape(4, 16), name)
    npy.save(tmp_path / "x.npy", array)
    lost = numpy_dtype(name).kind == "V" and numpy_dtype(name).itemsize == 1
    if lost:
        with pytest.raises(SmaltiError, match=rf"SML0116.*\b{name}\b"):
            npy.load(tmp_path / "x.npy")
    back = npy.load(tmp_path / "x.npy", name if lost else None)
    assert back.dtype == array.dtype and back.tobytes() == array.tobytes() and back.shape == array.shape
    assert back.flags.writeable


def test_npy_reads_what_numpy_wrote(tmp_path):
    want = np.arange(12, dtype=">i4").reshape(3, 4, order="F")
    np.save(tmp_path / "x.npy", want)
    back = npy.load(tmp_path / "x.npy")
    assert back.dtype == np.int32 and (back == want).all()
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(tmp_path / "v.npy", "wb") as file:
            np.lib.format.write_array(file, np.float32([1, 2]), version=version)
        assert npy.load(tmp_path / "v.npy").tolist() == [1, 2]
    np.save(tmp_path / "scalar.npy", np.float32(3))
    assert npy.load(tmp_path / "scalar.npy").shape == ()
    np.save(tmp_path / "empty.npy", np.zeros((0, 4)))
    assert npy.load(tmp_path / "empty.npy").shape == (0, 4)


def test_npy_bits_as_another_format(tmp_path):
    np.save(tmp_path / "x.npy", np.array([0x38, 0x40], np.uint8))
    assert npy.load(tmp_path / "x.npy", "e4m3").astype(float).tolist() == [1, 2]
    with pytest.raises(SmaltiError, match="SML0113"):
        npy.load(tmp_path / "x.npy", "f16")


def corrupt():
    file = io.BytesIO()
    np.save(file, np.arange(100.0))
    good = file.getvalue()
    yield "empty", b""
    yield "magic", b"X" + good[1:]
    yield "version", good[:6] + b"\x09" + good[7:]
    yield "cut header", good[:40]
    yield "cut data", good[:-1]
    yield "long header", good[:8] + b"\xff\xff" + good[10:] + b" " * 70000
    for name, old, new in (
        ("negative", b"(100,)", b"(-10,)"),
        ("huge", b"(100,)", b"(1<<9,)"),
        ("giant", b"(100,),", b"(281474976710655,),"),
        ("object", b"'<f8'", b"'|O8'"),
        ("code", b"'<f8'", b"open("),
        ("structured", b"'<f8'", b"[('a', '<f8')]"),
        ("bool shape", b"(100,)", b"(True,)"),
    ):
        yield name, good.replace(old, new)
    yield "nested", good[:10] + b"(" * 5000 + good[10:]


@pytest.mark.parametrize(("name", "data"), list(corrupt()))
def test_corrupt_npy(name, data, tmp_path):
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(SmaltiError, match="SML0114"):
        npy.load(tmp_path / "x.npy")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(SmaltiError, match="SML0115") as caught:
        npy.load(tmp_path / "none.npy")
    assert isinstance(caught.value, OSError)
    with pytest.raises(SmaltiError, match="SML0115"):
        npy.load(tmp_path)


def test_writing_leaves_no_partial_file(tmp_path):
    (tmp_path / "d.npy").write_text("old")

    def interrupted(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_aside(tmp_path / "d.npy", interrupted)
    assert os.listdir(tmp_path) == ["d.npy"] and (tmp_path / "d.npy").read_text() == "old"
    npy.save(tmp_path / "d.npy", np.ones(2))
    assert os.listdir(tmp_path) == ["d.npy"] and npy.load(tmp_path / "d.npy").tolist() == [1, 1]
    assert stat.S_IMODE((tmp_path / "d.npy").stat().st_mode) & 0o600 == 0o600
    with pytest.raises(SmaltiError, match="SML0117"):
        npy.save(tmp_path / "no" / "d.npy", np.ones(2))


def test_archives_of_several_arrays(tmp_path):
    npy.save_all(tmp_path / "x.npz", {"file": np.arange(3), "b": np.ones((2, 2), ml_dtypes.bfloat16)})
    with np.load(tmp_path / "x.npz") as archive:
        assert archive["file"].tolist() == [0, 1, 2]
        assert archive["b"].view(ml_dtypes.bfloat16).astype(float).tolist() == [[1, 1], [1, 1]]
    assert os.listdir(tmp_path) == ["x.npz"]
