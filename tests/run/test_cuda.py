"""The kernels of test_run on a real GPU: the same bits. Each runs in a process of its own, with a time limit."""

import subprocess
import sys
from pathlib import Path

import kernels
import pytest

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parent
SCRIPT = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import kernels
from smalti.errors import SmaltiError
from smalti.run import compare, run
"""


def child(code, seconds=120):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + code], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", kernels.ALL)
def test_known_results(name):
    said = child(f"""
text, launch = kernels.{name}()
result = run(text, launch, "cuda", repeat=2)
print([compare(launch.buffers[n], got).differing for n, got in result.outputs.items()], result.device.arch)
assert result.figures["milliseconds"] > 0
""")
    assert said.split() == ["[0]", "sm_90a"]


def test_the_drivers_own_assembler():
    child("""
from smalti.run import cuda
text, launch = kernels.add()
memory, times = cuda.launch(text.encode(), launch)
assert memory["d"].tobytes() == launch.buffers["d"].expected.tobytes() and len(times) == 1
""")


def test_a_fault_in_the_kernel_is_a_coded_error():
    child("""
text, launch = kernels.add()
text = text.replace("st.global.f32 [%rd7]", "mov.u64 %rd7, 64; st.global.f32 [%rd7]")
try:
    run(text, launch, "cuda")
except SmaltiError as failed:
    assert failed.code == "SML0174" and "ILLEGAL_ADDRESS" in str(failed), failed
else:
    raise AssertionError("no error")
""")


def test_clusters_and_much_shared_memory():
    child("""
import dataclasses
text, launch = kernels.add()
wide = dataclasses.replace(launch, cluster=(2, 1, 1), shared=200 * 1024)
result = run(text, wide, "cuda")
assert compare(launch.buffers["d"], result.outputs["d"]).differing == 0
""")
