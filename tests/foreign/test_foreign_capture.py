"""`smalti capture`: what a launch becomes, whoever compiled; the page docs/foreign.md, executed."""

import re
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import stub

from smalti.cli import main
from smalti.errors import SmaltiError
from smalti.layout.tensor_map import TensorMap
from smalti.run import run
from smalti.run.capture import Array, triton_launch
from smalti.run.capture_triton import capture
from smalti.run.launch import MapOf, Pointer, Scalar, Scratch
from smalti.run.launch_file import load

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "foreign.md").read_text()
EXAMPLE = HERE / "example"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def lines(text):
    """Without what differs from run to run: times, and the line of counts."""
    return [re.sub(r"[\d.]+ s,", "T s,", line) for line in text.splitlines() if not line.startswith("figures")]


# -- arrays --------------------------------------------------------------------------------------------


def test_array_is_what_triton_asks_for():
    x = Array(np.arange(12, dtype=np.float16).reshape(3, 4))
    assert (x.shape, x.stride(), x.stride(0), x.numel(), x.element_size()) == ((3, 4), (4, 1), 4, 12, 2)
    assert str(x.dtype) == "float16" and x.dtype.is_floating_point and x.dtype.itemsize == 2
    assert x.data_ptr() % 256 == 0 and x.data_ptr() != Array(np.zeros(3)).data_ptr()


@pytest.mark.parametrize(
    ("dtype", "name", "floating"),
    [
        (ml_dtypes.bfloat16, "bfloat16", True), (ml_dtypes.float8_e4m3fn, "float8_e4m3fn", True),
        (np.int8, "int8", False),
        (ml_dtypes.float8_e8m0fnu, "uint8", False), (np.float64, "float64", True), (np.uint32, "uint32", False),
    ],
)  # fmt: skip
def test_names_of_dtypes(dtype, name, floating):
    x = Array(np.ones(16, dtype))
    assert str(x.dtype) == name and (x.dtype.is_floating_point == floating or name == "uint8")
    assert np.array_equal(x.numpy(), np.ones(16, dtype)) and x.numpy().dtype == dtype


def test_packed_elements_are_bytes_to_a_kernel():
    values = np.arange(16).reshape(2, 8).astype(np.float32).astype(ml_dtypes.float4_e2m1fn)
    x = Array(values)
    assert x.shape == (2, 4) and str(x.dtype) == "uint8" and x.memory.size == 8
    assert np.array_equal(x.numpy().view(np.uint8), values.view(np.uint8))


def test_a_view_of_an_array_sees_what_is_written():
    x = Array(np.zeros(4, np.int32))
    seen = x.numpy()
    x.memory[4] = 7
    assert seen.tolist() == [0, 7, 0, 0]


# -- launches ------------------------------------------------------------------------------------------


def test_scalars_pointers_and_what_is_compiled_in():
    x, y = Array(np.arange(6, dtype=np.float32)), Array(np.arange(4, dtype=np.int64))
    signature = [("x", "*fp32"), ("B", "constexpr"), ("n", "i32"), ("wide", "u64"), ("s", "fp32"), ("h", "fp16"),
                 ("flag", "i1"), ("none", "*fp32"), ("t", ("*i64", "constexpr", "i32"))]  # fmt: skip
    arguments = [x, 64, -3, 1 << 40, 0.5, 2.0, True, None, (y, 5, 9)]
    told = stub.metadata(num_ctas=2, shared=4096, global_scratch_size=128)
    launch, memories = triton_launch("kernel", signature, arguments, told, (3, 2, 1))
    assert launch.params == (
        Pointer("x"), Scalar("s32", -3), Scalar("u64", 1 << 40), Scalar("f32", 0.5), Scalar("f16", 2.0),
        Scalar("u8", 1),
        Scratch(0), Pointer("t_0"), Scalar("s32", 9), Scratch(128 * 12), Scratch(0),
    )  # fmt: skip
    assert (launch.grid, launch.cluster, launch.block, launch.shared) == ((6, 2, 1), (2, 1, 1), (128, 1, 1), 4096)
    assert launch.buffers["x"].dtype == "f32" and launch.buffers["t_0"].shape == (4,)
    assert memories.update({"x": np.arange(6, dtype=np.float32), "t_0": y.numpy() + 1}) == ["t_0"]
    assert y.numpy().tolist() == [1, 2, 3, 4]


def test_arguments_that_share_memory_share_a_buffer():
    x = Array(np.arange(8, dtype=np.float32))
    launch, _ = triton_launch("kernel", [("a", "*fp32"), ("b", "*fp32")], [x, x], stub.metadata(), (1, 1, 1))
    assert list(launch.buffers) == ["a"] and launch.params[:2] == (Pointer("a"), Pointer("a"))


META = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [64, 32], "fp4_padded": False}


def descriptor(base, **fields):
    given = {"base": base, "shape": list(base.shape), "strides": list(base.stride()), "padding": "zero",
             "round_f32_to_tf32": False} | fields  # fmt: skip
    return SimpleNamespace(**given)


def test_descriptors_become_tensor_maps():
    x = Array(np.zeros((100, 48), np.float16))
    told = stub.metadata(tensordesc_meta=[META])
    launch, _ = triton_launch("kernel", [("x", "tensordesc<fp16[64,32]>")], [descriptor(x)], told, (1, 1, 1))
    made = TensorMap("f16", (48, 100), (96,), box=(32, 64), swizzle="128B", l2_promotion="128B")
    numbers = Scalar("s32", 100), Scalar("s32", 48), Scalar("s64", 48), Scalar("s64", 1)
    assert launch.params == (MapOf("x", made), *numbers, Scratch(0), Scratch(0))


def test_padded_fp4_and_im2col_maps():
    x = Array(np.zeros((128, 64), np.uint8))
    padded = META | {"fp4_padded": True, "elem_size": 1, "elem_type": 14, "block_size": [128, 128]}
    told = stub.metadata(tensordesc_meta=[padded])
    launch, _ = triton_launch("kernel", [("x", "tensordesc<u8[128,64]>")], [descriptor(x)], told, (1, 1, 1))
    found = launch.params[0].map
    assert (found.type, found.size, found.stride, found.box) == ("b4x16_p64", (128, 128), (64,), (128, 128))
    image = Array(np.zeros((2, 6, 8, 64), np.float16))
    told = stub.metadata(tensordesc_meta=[META | {"block_size": [128, 64], "is_im2col": True}])
    corners = {"pixel_box_lower_corner": [-1, -2], "pixel_box_upper_corner": [0, 1], "element_strides": None}
    launch, _ = triton_launch("k", [("x", "tensordesc_im2col<>")], [descriptor(image, **corners)], told, (1, 1, 1))
    found = launch.params[0].map
    found.check()
    assert (found.mode, found.lower, found.upper, found.channels, found.pixels) == ("im2col", (-2, -1), (1, 0), 64, 128)


def test_descriptors_in_parts():
    x = Array(np.zeros((4, 16), np.float32))
    launch, _ = triton_launch("k", [("x", "tensordesc<fp32[4,16]>")], [descriptor(x)], stub.metadata(), (1, 1, 1))
    kinds = [p.type if isinstance(p, Scalar) else type(p).__name__ for p in launch.params]
    assert kinds == ["Pointer", *["s64"] * 4, "u8", "u8", "s32", "s32", "s64", "s64", "Scratch", "Scratch"]


@pytest.mark.parametrize("value", [0x7F0000000000, np.zeros(4, np.float32), SimpleNamespace(data_ptr=lambda: 16)])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(SmaltiError, match="SML0181") as caught:
        triton_launch("k", [("x", "*fp32")], [value], stub.metadata(), (1, 1, 1))
    assert caught.value.params["name"] == "x"
    with pytest.raises(SmaltiError, match="SML0181"):
        triton_launch("k", [("x", "fp128")], [1], stub.metadata(), (1, 1, 1))


# -- the driver ----------------------------------------------------------------------------------------

ADD = HERE.parent / "data" / "foreign" / "add.sm_90a.ptx"
SIGNATURE = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}


def add_arguments(n=200):
    return (
        Array(np.arange(n, dtype=np.float32)),
        Array(np.full(n, 0.5, np.float32)),
        Array(np.zeros(n, np.float32)),
        n,
        1024,
    )


def test_launches_are_handed_over(monkeypatch):
    triton = stub.install(monkeypatch)
    caught = []
    heard = []
    triton.knobs.compilation.listener = lambda **told: heard.append(told)
    with capture("sm_90a", lambda c, m: caught.append((c, m))):
        driver = triton.runtime.driver.active
        assert driver.get_current_target().arch == 90 and driver.get_device_capability() == (9, 0)
        x, y, out, *rest = add_arguments()
        stub.launch(triton, ADD, SIGNATURE, (1, 1, 1), x, y, out, *rest, name="add")
        stub.launch(triton, ADD, SIGNATURE, (0, 1, 1), x, y, out, *rest, name="add")  # nothing to do
    assert triton.runtime.driver.active is None and len(heard) == 2 and triton.knobs.compilation.listener is not None
    ((found, memories),) = caught
    assert found.arch == "sm_90a" and found.ptx == ADD.read_text()
    result = run(found.ptx, found.launch, "virtual:sm_90a")
    assert memories.update(result.outputs) == ["out"]
    assert np.array_equal(out.numpy(), np.arange(200) + 0.5)


def test_live_launches_say_what_came_of_them(monkeypatch):
    """The driver that was there launches; what it wrote is the expectation."""
    triton = stub.install(monkeypatch)

    class Real:
        def get_current_target(self):
            return SimpleNamespace(arch=90)

        def launcher_cls(self, src, metadata):
            def launcher(x, y, z, stream, function, packed, data, enter, leave, a, b, out, n, block):
                out.memory.view(np.float32)[...] = a.numpy() + b.numpy()

            return launcher

        utils = "its own"

    triton.runtime.driver.set_active(Real())
    caught = []
    with capture(None, lambda c, m: caught.append(c)):
        assert triton.runtime.driver.active.utils == "its own"
        stub.launch(triton, ADD, SIGNATURE, (1, 1, 1), *add_arguments(), name="add")
    (found,) = caught
    outputs = {n: b for n, b in found.launch.buffers.items() if b.output}
    assert found.arch == "sm_90a" and list(outputs) == ["out"]
    assert np.array_equal(outputs["out"].expected.view(np.float32), np.arange(200) + 0.5)
    assert not outputs["out"].data.any()  # as it was before


def test_the_command(monkeypatch, tmp_path, capsys):
    """Two launches, kept under two names, run, their results given back; a third is over the limit."""
    stub.install(monkeypatch)
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, triton, stub\n"
        "from test_foreign_capture import ADD, SIGNATURE, add_arguments\n"
        "x, y, out, *rest = add_arguments(int(sys.argv[1]))\n"
        "for _ in range(3):\n"
        "    stub.launch(triton, ADD, SIGNATURE, (1, 1, 1), x, y, out, *rest, name='add')\n"
        "    x.memory[...] = out.memory\n"
        "print('sum', out.numpy()[1])\n"
    )
    folder = tmp_path / "new" / "kept"
    assert main(["capture", "--arch", "sm_90a", "--run", "--most", "2", "-o", str(folder), str(script), "32"]) == 0
    told = capsys.readouterr().out
    assert "sum 2.5" in told and told.count("captured ") == 2 and "1 more launches" in told and "wrote out" in told
    assert sorted(p.name for p in folder.glob("*.json")) == ["add-2.json", "add.json"]
    again = load(folder / "add-2.json")
    assert again.buffers["x"].data.view(np.float32)[1] == 1.5


def test_a_program_without_a_launch(monkeypatch, tmp_path, capsys):
    stub.install(monkeypatch)
    script = tmp_path / "program.py"
    script.write_text("print('hello')\n")
    assert main(["capture", "--arch", "sm_90a", "-o", str(tmp_path), str(script)]) == 2
    assert "SML0182" in capsys.readouterr().err
    assert main(["capture", "--arch", "sm_90a", "-o", str(tmp_path), str(tmp_path / "missing.py")]) == 2
    assert "SML0115" in capsys.readouterr().err


# -- the page ------------------------------------------------------------------------------------------


def test_the_page_s_second_command(capsys, monkeypatch):
    """On the files that the first one wrote, committed as tests/foreign/example."""
    _, _, command, *_ = blocks("sh")
    arguments = [a.replace("captured/", f"{EXAMPLE}/") for a in command.split()[1:]]
    assert main(arguments) == 0
    assert lines(capsys.readouterr().out) == lines(blocks("text")[1])


@pytest.mark.triton
def test_the_page_s_first_command(capsys, monkeypatch, tmp_path, no_gpu):
    """The program of the page is compiled, captured and run; the committed files are what comes of it."""
    _, command, *_ = blocks("sh")
    monkeypatch.chdir(tmp_path)
    Path("matmul.py").write_text(blocks("python")[0])
    assert main(command.split()[1:]) == 0
    assert lines(capsys.readouterr().out) == lines(blocks("text")[0])
    made = load("captured/matmul.json")
    kept = load(EXAMPLE / "matmul.json")
    assert made.params == kept.params and made.grid == kept.grid and made.shared == kept.shared
    assert all(np.array_equal(made.buffers[n].data, b.data) for n, b in kept.buffers.items())


@pytest.mark.triton
def test_the_page_s_python(monkeypatch, no_gpu, tmp_path, capsys):
    first, second = blocks("python")
    script = tmp_path / "both.py"
    definitions, _ = first.split("matmul[(2, 1)]")
    script.write_text(definitions + second + 'print("sum", c.numpy().sum())\n')
    import runpy

    runpy.run_path(str(script))
    assert "matmul []" in capsys.readouterr().out


def test_the_committed_example_computes_the_page_s_product():
    launch = load(EXAMPLE / "matmul.json")
    result = run((EXAMPLE / "matmul.ptx").read_text(), launch, "virtual:sm_100a")
    a, b = (launch.buffers[n].array_in(launch.buffers[n].data).astype(np.float64) for n in "ab")
    m, n, k = 256, 64, 128
    i, j, at = np.arange(m)[:, None], np.arange(n)[:, None], np.arange(k)
    assert np.array_equal(a, (i * 7 + at * 3) % 9 - 4) and np.array_equal(b, (j * 5 + at * 11) % 7 - 3)
    assert np.array_equal(result.outputs["c"], a @ b.T)
