"""`smalti capture` beside a real launch: the file says what the GPU left in its buffers, and the virtual GPU agrees."""

import pytest

from smalti.cli import main
from smalti.run import compare, run
from smalti.run.launch_file import load

PROGRAM = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def matmul(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        acc = tl.dot(a.load([i, at]), b.load([j, at]).T, acc)
    c.store([i, j], acc)


@triton.jit
def sums(x, out, count, N: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, N)
    value = tl.load(x + row * count + at, mask=at < count, other=0)
    tl.store(out + row, tl.sum(value))
    tl.atomic_add(out + tl.num_programs(0), tl.sum(value))


m, n, k = 256, 64, 128
i, j, at = torch.arange(m)[:, None], torch.arange(n)[:, None], torch.arange(k)
a = ((i * 7 + at * 3) % 9 - 4).to(torch.float16).cuda()
b = ((j * 5 + at * 11) % 7 - 3).to(torch.float16).cuda()
c = torch.full((m, n), float("nan"), device="cuda")
tiles = [TensorDescriptor.from_tensor(x, block) for x, block in ((a, [128, 64]), (b, [64, 64]), (c, [128, 64]))]
matmul[(2, 1)](*tiles, k, BM=128, BN=64, BK=64)
assert torch.equal(c.cpu().double(), a.cpu().double() @ b.cpu().double().T)
x = (torch.arange(7 * 100).reshape(7, 100) % 31 - 15).int().cuda()
out = torch.zeros(8, dtype=torch.int32, device="cuda")
sums[(7,)](x, out, 100, N=128)
assert out.cpu().tolist() == [*x.cpu().sum(1).tolist(), x.cpu().sum().item()]
"""


@pytest.mark.gpu
@pytest.mark.triton
def test_a_live_launch(tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    assert main(["capture", "-o", str(tmp_path / "got"), str(tmp_path / "program.py")]) == 0
    assert capsys.readouterr().out.count("captured ") == 2
    for name, changed in (("matmul", "c"), ("sums", "out")):
        path = tmp_path / "got" / f"{name}.json"
        launch, text = load(path), path.with_suffix(".ptx").read_text()
        assert [n for n, b in launch.buffers.items() if b.output] == [changed]
        for device in ("virtual:sm_90a", "cuda"):
            result = run(text, launch, device)
            assert not compare(launch.buffers[changed], result.outputs[changed]).differing, (name, device)
