"""What people really paste: prose, quotes, notebooks, logs of several processes, compilers' output; each must lead to
its page at once. Texts are shortened or retold from the public threads that are named beside them.
"""

import json

import pytest

from smalti.explain import show
from smalti.explain.reading import clean, exceptions, mentions
from smalti.explain.search import find
from tests.explain.test_reading import PLAIN

RAY = """\
(SGLangWorker pid=38135)   File "/opt/conda/lib/python3.11/site-packages/triton/backends/nvidia/compiler.py", line 297, in make_cubin
(SGLangWorker pid=38135)     raise RuntimeError(f'Internal Triton PTX codegen error: \\n{log}')
(SGLangWorker pid=38135) RuntimeError: Internal Triton PTX codegen error:
(SGLangWorker pid=38135) ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'
(SGLangWorker pid=38135)
(SGLangWorker pid=38135) During handling of the above exception, another exception occurred:
(SGLangWorker pid=38135)
(SGLangWorker pid=38135) Traceback (most recent call last):
(SGLangWorker pid=38135)   File "/workspace/scheduler.py", line 326, in run_scheduler_process
"""  # noqa: E501
PTXAS = """\
  File "/usr/local/lib/python3.12/dist-packages/triton/backends/nvidia/compiler.py", line 442, in make_cubin
    raise PTXASError(f"{error}\\n"
triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error
`ptxas` stderr:
ptxas /tmp/t.ptx, line 606; error   : Feature '.tile::gather4' not supported on .target 'sm_120a'
ptxas fatal   : Ptx assembly aborted due to errors
"""
XLA = """\
E1120 10:59:55.894873   35984 client.cc:3067] Execution of replica 0 failed: INTERNAL: CUDA error: Could not synchronize: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered.
Traceback (most recent call last):
  File "/mnt/u/test_trans.py", line 146, in <module>
    print(vstate.expect(H))
          ^^^^^^^^^^^^^^^^
jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to retrieve branch_index value
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception.
"""  # noqa: E501
TORCH = """\
torch.AcceleratorError: CUDA error: an illegal instruction was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
OLD_JAX = """\
FilteredStackTrace                        Traceback (most recent call last)
<ipython-input-3-494b058151df> in <module>
----> 1 hs,ws,ts = run(params,plot=False)

FilteredStackTrace: RuntimeError: Internal: libdevice not found at ./libdevice.10.bc

The stack trace above excludes JAX-internal frames.
"""
CAPTURE = """\
Warp CUDA error 900: operation not permitted when stream is capturing (in function cuda_unload_module, warp.cu:3929)
XlaRuntimeError: INTERNAL: CUDA error: Failed to end stream capture: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: operation
"""
PASS = """\
/tmp/k.py:14:0: note: Pipeline failed while executing [`TritonGPUAllocateWarpGroups` on 'builtin.module' operation]
Traceback (most recent call last):
  File "/home/u/venv/lib/python3.12/site-packages/triton/backends/nvidia/compiler.py", line 300, in make_llir
    pm.run(mod, 'make_llir')
RuntimeError: PassManager::run failed
"""
RESOURCES = """\
[16:10:33] stdout/INFO  triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 98304, Hardware limit: 65536. Reducing block sizes or `num_stages` may help.
[16:10:42] health/ERROR  OutOfResources: out of resource: shared memory, Required: 98304, Hardware limit: 65536.  (x5)
"""  # noqa: E501
PROSE = """\
The following errors with "ValueError: Failed to infer a possible set of layouts. This should only happen
if user-provided layout casts are unsatisfiable." But there is no layout cast in the program.
"""
DSL = """\
cutlass.base_dsl.common.DSLRuntimeError: DSLRuntimeError: Error during runtime code generation for function `kernel`
  Caused exception: error: unexpected error: 'cute.gemm' op failed to verify that A operand layout is compatible
"""
NVCC = 'fp8_gemm.cuh(102): error: static assertion failed with "Too many barriers"\n   detected during instantiation\n'

FAULTS = {
    "RLinf#92": (RAY, "FLT0049", {"target": "sm_120"}),
    "sglang#8879": (PTXAS, "FLT0038", {"feature": ".tile::gather4", "target": "sm_120a"}),
    "jax#25002": (XLA, "FLT0012", {}),
    "DeepGEMM#405": (TORCH, "FLT0014", {}),
    "jax#6323": (OLD_JAX, "FLT0053", {"path": "./libdevice.10.bc"}),
    "mujoco_warp#350": (CAPTURE, "FLT0050", {"what": "INVALIDATED"}),
    "triton#7354": (PASS, "FLT0051", {}),
    "FreeToken#246": (RESOURCES, "FLT0047", {"what": "shared memory", "given": "98304", "most": "65536"}),
    "jax#39997": (PROSE, "FLT0037", {}),
    "cute dsl": (DSL, "FLT0033", {"operation": "cute.gemm", "rule": "A operand layout is compatible"}),
    "DeepGEMM#25": (NVCC, "FLT0052", {"rule": "Too many barriers"}),
}


@pytest.mark.parametrize("thread", FAULTS)
def test_faults_are_found_in_what_is_pasted(thread):
    text, fault, values = FAULTS[thread]
    for pasted in (text, f"\x1b[31m{text}\x1b[0m".replace("\n", "\r\n"), f"It says this:\n\n{text}\nAny idea?"):
        answer = find(pasted)
        best = answer.matches[0]
        assert (best.page.id, answer.ambiguous) == (fault, False), pasted
        assert best.values == values
        assert show.answer(answer).count("What to do") == 1


def test_a_general_fault_comes_after_the_one_that_says_what():
    assert [m.page.id for m in find(PTXAS).matches] == ["FLT0038", "FLT0028"]
    assert find("ptxas fatal   : Ptx assembly aborted due to errors").matches[0].page.id == "FLT0028"
    assert [m.page.id for m in find("C7504: setmaxnreg ignored").matches] == ["FLT0043"]


QUOTED = [  # retold from jax#32123
    '1. After adding `backend="mosaic_gpu"`, fails with\n\n   > ValueError: a_scale must be a TMEM Ref\n\n1. Then',
    "I get `ValueError: a_scale must be a TMEM Ref` from my kernel",
    "2026-01-02 worker died: ValueError: a_scale must be a TMEM Ref",
    "- ValueError: a_scale must\n  be a TMEM Ref\n",
    "| ValueError: a_scale must be a TMEM Ref",
]


@pytest.mark.parametrize("text", QUOTED)
def test_a_message_quoted_in_prose(text):
    answer = find(text)
    assert answer.matches[0].page.id == "6586b591b816d18e" and answer.matches[0].certainty == "likely"


def test_prose_without_an_exception_mentions_none():
    assert mentions("note: this is a text\nStep 1: do it\nhttp://x.y: z\nFoo: bar") == []
    (one,) = mentions('he wrote "pkg.OddError: some "quoted" words" and left')
    assert (one.type, one.message) == ("pkg.OddError", 'some "quoted" words')


COLAB = """\
[google3/third_party/py/pkg/_impl.py](https://colab.example/drive/1CW#) in run(x, mode, *, size)
      8     if not isinstance(x, list):
----> 9         raise TypeError(f"x must be a list, got {type(x).__name__}")

TypeError: x must be a list, got int
"""


def test_frames_as_links_of_a_hosted_notebook(store):
    best = find(COLAB, [store]).matches[0]
    assert best.certainty == "sure" and any("very line" in r for r in best.reasons) and best.page.function == "run"


def test_a_traceback_inside_a_json_string(store):
    best = find('{"error": ' + json.dumps(PLAIN) + "}", [store]).matches[0]
    assert best.certainty == "sure" and best.page.function == "run"


def test_a_python_error_that_passes_on_a_compilers_words(tmp_path):
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    source = "def make_cubin(log):\n    raise PTXASError(f'PTXAS error: {log}')\n"
    lay(tmp_path, {"triton/backends/nvidia/compiler.py": source, "triton/__init__.py": ""})
    index(Subject("triton", tmp_path, "9"), tmp_path / "t.sqlite")
    store = Store(tmp_path / "t.sqlite")
    answer = find(PTXAS, [store])
    assert answer.matches[0].page.id == "FLT0038" and answer.matches[1].page.function == "make_cubin"
    assert "explained first" in " ".join(answer.matches[1].reasons)
    store.close()


def test_the_printed_source_line_tells_places_apart(tmp_path):
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    body = "def f(a, b):\n    if a:\n        raise KeyError(f'{a}')\n    if b > 2:\n        raise KeyError(f'{b}')\n"
    lay(tmp_path, {"pkg/__init__.py": body})
    index(Subject("pkg", tmp_path, "1"), tmp_path / "t.sqlite")
    store = Store(tmp_path / "t.sqlite")
    for line, text, found in ((40, "raise KeyError(f'{b}')", 5), (40, "raise KeyError(f'{a}')", 3)):
        frame = f'Traceback (most recent call last):\n  File "/v/pkg/__init__.py", line {line}, in f\n    {text}\n'
        answer = find(frame + "KeyError: '3'", [store])
        assert [m.page.line for m in answer.matches] == [found] and not answer.ambiguous
    moved = frame.replace("line 40", "line 5") + "KeyError: '3'"  # line 5 was another raise in that version
    assert [m.page.line for m in find(moved, [store]).matches] == [3]
    frame = frame.replace(f"    {text}\n", "")
    answer = find(frame + "KeyError: '3'", [store])
    assert answer.ambiguous and sorted(p.line for m in answer.matches for p in m.places or [m.page]) == [3, 5]
    store.close()


def test_a_type_whose_name_does_not_look_like_one(tmp_path):
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    body = "def f(a, b):\n    raise UnsupportedConstruct(f'invalid operands of type {a} and {b}')\n"
    lay(tmp_path, {"pkg/__init__.py": body})
    index(Subject("pkg", tmp_path, "1"), tmp_path / "t.sqlite")
    store = Store(tmp_path / "t.sqlite")
    for text in ("pkg.UnsupportedConstruct: invalid operands of type 7 and 8", "invalid operands of type 7 and 8"):
        (best,) = find(text, [store]).matches
        assert best.certainty == "sure" and best.values == {"a": "7", "b": "8"}
    store.close()


def test_the_users_call_puts_its_place_first(tmp_path):
    """JAX hides its own frames; the line of the user's still says which entry point was called."""
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    text = "def {0}(n):\n    if n % 8:\n        raise ValueError(f'N must be a multiple of 8, got {{n}}')\n\n\n"
    body = "".join(text.format(name) for name in ("alpha", "beta", "gamma"))
    lay(tmp_path, {"pkg/__init__.py": body})
    index(Subject("pkg", tmp_path, "1"), tmp_path / "t.sqlite")
    store = Store(tmp_path / "t.sqlite")
    for name in ("gamma", "beta", "alpha"):
        frame = f'Traceback (most recent call last):\n  File "/home/u/k.py", line 3, in body\n    x = pkg.{name}(12)\n'
        answer = find(frame + "ValueError: N must be a multiple of 8, got 12", [store])
        assert answer.ambiguous and answer.matches[0].page.function == name and len(answer.matches[0].places) == 3
        assert any(f"your code calls {name}" in reason for reason in answer.matches[0].reasons)
    store.close()


def test_other_frames_of_the_file_tell_how_far_it_moved(tmp_path):
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    raises = "".join(f"    if a == {n}:\n        raise KeyError('no such key')\n" for n in range(4))
    body = f"def f(a):\n{raises}\n\ndef g(a):\n    return f(a + 1)\n"  # raises on lines 3, 5, 7, 9; the call on 13
    lay(tmp_path, {"pkg/__init__.py": body})
    index(Subject("pkg", tmp_path, "1"), tmp_path / "t.sqlite")
    store = Store(tmp_path / "t.sqlite")
    for line in (3, 5, 7, 9):  # the file of the traceback is 100 lines longer at its head
        text = (
            "Traceback (most recent call last):\n"
            '  File "/v/pkg/__init__.py", line 113, in g\n    return f(a + 1)\n'
            f"  File \"/v/pkg/__init__.py\", line {line + 100}, in f\n    raise KeyError('no such key')\n"
            "KeyError: 'no such key'"
        )
        best = find(text, [store]).matches[0]
        assert best.page.line == line and len(best.places) == 4
    store.close()


@pytest.mark.parametrize(
    "text",
    [
        "no flg with fsat work",  # letters lost and swapped
        "NO FLAG WITH FAST",  # a part
        "with fast work no flag",  # another order
        "no flag with the fast work!",
    ],
)
def test_messages_from_memory(store, text):
    answer = find(text, [store])
    assert answer.matches[0].page.message == "no flag with fast work" and answer.matches[0].certainty == "similar"


def test_a_clear_nearest_page_is_shown_and_a_close_race_is_a_list(store):
    shown = show.answer(find("no flag with fats work", [store]))
    assert "By far the nearest" in shown and "tested          flag is not None" in shown
    shown = show.answer(find("NotImplementedError: sparse layout unsupported, meta or what"))
    assert "The nearest:" in shown and "Read one with: smalti explain" in shown


def test_what_has_no_words_is_said():
    assert "paste the whole traceback" in show.answer(find("NotImplementedError"))
    elsewhere = PLAIN.replace("site-packages/", "").replace("x must be a list, got int", "((8, 4), 2)")
    shown = show.answer(find(elsewhere))
    assert "JAX_TRACEBACK_FILTERING=off" in shown


def test_the_package_to_index_is_named(store):
    shown = show.answer(find(PLAIN))
    assert "It was raised in pkg, which is not indexed: smalti errors index pkg" in shown
    windows = PLAIN.replace("/v/lib/python3.12/site-packages/pkg/", "C:\\py\\Lib\\site-packages\\pkg\\")
    assert "smalti errors index pkg" in show.answer(find(windows))
    assert "not indexed" not in show.answer(find(PLAIN.replace("must be", "is never"), [store]))


def test_source_lines_are_read_in_every_form():
    (plain,) = exceptions(clean(PLAIN))
    assert plain.frames[-1].text == 'raise TypeError(f"x must be a list, got {type(x).__name__}")'
    (colab,) = exceptions(clean(COLAB))
    assert colab.frames[-1].text == plain.frames[-1].text


SAMPLES = {
    "bc41dabd60da7836": [
        "A scale adress calculation for mutliple M tiles",
        "NotImplementedError: scale address calculation, multiple M tiles",
        "a scale address calculation for multiple m tiles!!",
        "A scale address calc for multiple M tiles",
    ],
    "6586b591b816d18e": [
        "a_scale must be TMEM Ref",
        "ValueError: a_scale has to be a TMEM Ref",
        "a_scale mst be a TEMM Ref",
        "my kernel says a_scale must be a TMEM Ref, why?",
    ],
    "8631583c6363c1b2": [
        "Unsuported WGMMA features with A in regs",
        "WGMMA features with A in registers",
        "unsupported wgmma feature A in registers",
        "ValueError: Unsupported features of WGMMA with A in registers",
    ],
    "1602ec8d21704352": [
        "Sparse meta layout load unsupported",
        "sparse meta layout loads not supported",
        "NotImplementedError: Sparse metadata layout loads unsupported.",
        "Sparse meta layout loads unsuported",
    ],
}


@pytest.mark.parametrize("identifier", SAMPLES)
def test_samples_typed_from_memory(identifier):
    for text in SAMPLES[identifier]:
        best = find(text).matches[0]
        assert best.page.id == identifier, text
        assert best.page.smalti_example and len(best.page.solutions) >= 2 and best.page.situations


def test_an_id_of_another_catalogue_says_where_it_was_there():
    (found,) = find("6586b591b816d18e").matches
    assert "line 2595 at commit 1e1c6a8fc0" in found.reasons[0]


def test_the_chain_that_jax_prints_when_it_lowers(store):
    text = (
        'Traceback (most recent call last):\n  File "/home/u/k.py", line 5, in body\n    o[...] = jnp.dot(a[...], b)\n'
        "jax._src.source_info_util.JaxStackTraceBeforeTransformation: TypeError: x must be a list, got int\n\n"
        "The preceding stack trace is the source of the JAX operation that, once transformed by JAX, triggered the "
        "following exception.\n\n--------------------\n\n"
        "The above exception was the direct cause of the following exception:\n\n" + PLAIN
    )
    answer = find(text, [store])
    assert [m.page.function for m in answer.matches] == ["run"] and answer.matches[0].certainty == "sure"
    assert not answer.notes
