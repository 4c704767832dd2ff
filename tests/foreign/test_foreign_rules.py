"""What other compilers rely on, and no document promises: counts as kept in PTX text, reported under strict checks."""

import re
from pathlib import Path

import pytest

from smalti.errors import SmaltiError
from smalti.ptx.parse import parse
from smalti.run import run
from smalti.run.launch_file import load

HERE = Path(__file__).parent / "kernels"
TILE = HERE / "gluon" / "tile_f16.sm_100a.json"


def codes(path, change=None, module=False, **options):
    """The codes found in a kernel of the corpus, its text changed."""
    text = path.with_suffix(".ptx").read_text()
    if change is not None:
        assert re.search(change[0], text), change
        text = re.sub(*change, text)
    given = parse(text, path.name) if module else text
    try:
        result = run(
            given, load(path), "virtual:sm_100a" if "100a" in path.name else "virtual:sm_90a", collect=True, **options
        )
    except SmaltiError as refused:
        return {refused.code}
    return {r.code for r in result.reports}


@pytest.mark.parametrize("code", ["SML0941", "SML0942"])
def test_a_module_without_fences(code):
    """Counted in text; reported where the module is our own, or strict; a text with some fences must have all."""
    path = HERE / "triton" / "matmul_bf16.sm_100a.json"
    assert codes(path) == set()
    assert code in codes(path, strict=True) and code in codes(path, module=True)
    fence = {"SML0941": "after", "SML0942": "before"}[code]
    useless = rf"\g<0>\n\ttcgen05.fence::{fence}_thread_sync;"
    assert codes(path, (r"ret;", rf"tcgen05.fence::{fence}_thread_sync;\nret;")) == {code}
    assert code in codes(path, (r"tcgen05\.relinquish[^;]*;", useless))


def test_the_word_of_an_allocation():
    """TMA overwrites it without a proxy fence; anything else that was written needs one."""
    assert codes(TILE) == set() and "SML0931" in codes(TILE, strict=True)
    written = "st.shared.b32 [%r9], 0;\n\tbar.sync 0;\n\t"
    base = re.search(r"mov\.b32 \t(%r\d+), global_smem;", TILE.with_suffix(".ptx").read_text())[1]
    change = (r"(@%p\d+ )mbarrier\.arrive\.expect_tx", written.replace("%r9", base) + r"\g<0>")
    assert "SML0931" in codes(TILE, change)


def test_reads_before_a_relaxed_barrier():
    """What a peer writes behind it does not disturb them; without the barrier it would."""
    path = HERE / "gluon" / "pair_four.sm_100a.json"
    assert codes(path) == set() and "SML0930" in codes(path, strict=True)
    assert codes(path, (r"barrier\.cluster\.(arrive\.relaxed|wait)\.aligned;\n(?=\s*@)", "")) != set()


def test_reductions_race_with_no_reduction():
    """TMA reductions of several CTAs to one place are no race; one of them as a plain store is."""
    path = HERE / "gluon" / "tma_reductions.sm_90a.json"
    assert codes(path) == set()
    plain = (r"cp\.reduce(\.async\.bulk\.tensor\.2d\.global\.shared::cta)\.add", r"cp\1")
    assert "SML0930" in codes(path, plain)


def test_a_descriptor_without_its_constant():
    """JAX leaves bit 46 out."""
    text = TILE.with_suffix(".ptx").read_text()
    (upper,) = {n for n in map(int, re.findall(r"mov\.b32 \t%r\d+, (\d+);", text)) if n >> 14 == 1 << 16 | 1}
    change = (rf"\b{upper};", f"{upper ^ 1 << 14};")
    assert codes(TILE, change) == set()
    assert codes(TILE, change, strict=True) == codes(TILE, change, module=True) == {"SML0873"}
    assert codes(TILE, (rf"\b{upper};", f"{upper ^ 1 << 15};")) == {"SML0873"}  # another value of the field


def test_lanes_of_tensor_memory_count_from_the_warp_s_own():
    """JAX gives every warp lane 0 of its quarter."""
    text = TILE.with_suffix(".ptx").read_text()
    mask = re.search(r"and\.b32 \t%r\d+, %r\d+, (6291456);", text)[1]
    assert codes(TILE, (mask, "0")) == set()
    assert codes(TILE, (mask, "0"), strict=True) == codes(TILE, (mask, "0"), module=True) == {"SML0866"}
    assert codes(TILE, (r"and(\.b32 \t%r\d+, %r\d+, )6291456", r"or\g<1>2097152")) == {"SML0866"}


def test_a_zero_column_mask_that_masks_nothing():
    """TileLang gives every tcgen05.mma.ws one; those that zero columns are refused by name."""
    pattern = r"tcgen05\.mma\.cta_group::1\.kind::f16 ([^;]*);"
    assert codes(TILE, (pattern, r"tcgen05.mma.ws.cta_group::1.kind::f16 \1, 0;")) == set()
    assert codes(TILE, (pattern, r"tcgen05.mma.ws.cta_group::1.kind::f16 \1, 549755813888;")) == {"SML0874"}


def test_a_commit_to_an_address_of_shared_memory():
    """Triton up to 3.6 gives tcgen05.commit one without a state space, where a generic address belongs."""
    spelled = r"(@%p\d+ )(tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one)\.shared::cluster\.b64 \[(%r\d+)\];"
    plain = r"{\n\t.reg .b64 far;\n\tcvt.u64.u32 far, \3;\n\t\1\2.b64 [far];\n\t}"
    assert codes(TILE, (spelled, plain)) == set()
    assert codes(TILE, (spelled, plain), strict=True) == codes(TILE, (spelled, plain), module=True) == {"SML0805"}
    right = r"{\n\t.reg .b64 far;\n\tcvt.u64.u32 far, \3;\n\tcvta.shared.u64 far, far;\n\t\1\2.b64 [far];\n\t}"
    assert codes(TILE, (spelled, right)) == set() and "SML0805" not in codes(TILE, (spelled, right), module=True)


def test_unknown_instructions_come_all_in_one_error():
    """With their counts, and the nearest form that is known."""
    text = TILE.with_suffix(".ptx").read_text()
    for before, after in (("tcgen05.wait::ld.sync.aligned", "tcgen05.wait::xx.sync.aligned"), ("bar.sync", "bar.wait")):
        assert before in text
        text = text.replace(before, after)
    with pytest.raises(SmaltiError, match="SML0207") as caught:
        run(text, load(TILE), "virtual:sm_100a")
    assert caught.value.params["forms"] == 2 and caught.value.params["count"] > 2
    assert "tcgen05.wait::xx" in caught.value.params["listed"] and "bar.wait" in caught.value.params["listed"]
