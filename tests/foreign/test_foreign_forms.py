"""Instruction forms that other people's kernels use (forms.txt) are executed by kernels here, not only known."""

import importlib.util
from pathlib import Path

import pytest

from smalti.errors import SmaltiError
from smalti.ptx.isa import TABLE
from smalti.run import Launch, run

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("foreign_forms", HERE.parents[1] / "tools" / "foreign" / "forms.py")
forms = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(forms)

# No kernel goes on after it.
ENDS_THE_KERNEL = {"brkpt"}
KERNELS = sorted(set(forms.listed().values()) - {""})


@pytest.mark.parametrize("kernel", KERNELS)
def test_forms_are_executed(kernel):
    wanted = {form for form, by in forms.listed().items() if by == kernel}
    assert wanted - forms.executed(HERE / "kernels" / f"{kernel}.json") == set()


def test_every_form_has_its_kernel():
    listed = forms.listed()
    assert len(listed) >= 380
    assert {form for form, kernel in listed.items() if not kernel} == ENDS_THE_KERNEL
    assert all(TABLE.form(form) is not None for form in listed)


@pytest.mark.parametrize("form", sorted(ENDS_THE_KERNEL))
def test_forms_that_end_a_kernel(form):
    text = f".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry e()\n{{\n\t{form};\n\tret;\n}}\n"
    with pytest.raises(SmaltiError, match=form):
        run(text, Launch("e", (1, 1, 1), (32, 1, 1)), "virtual:sm_90a")


def test_what_no_thread_executes_does_not_count():
    """An instruction behind a guard that never holds, and one that is jumped over."""
    text = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry e()
{
	.reg .pred %p<2>;
	.reg .b32 %r<3>;
	mov.u32 %r1, 1;
	setp.eq.s32 %p1, %r1, 2;
	@%p1 add.s32 %r2, %r1, %r1;
	@!%p1 bra END;
	sub.s32 %r2, %r1, %r1;
END:
	ret;
}
"""
    seen = set()
    with forms.recording(seen):
        run(text, Launch("e", (1, 1, 1), (32, 1, 1)), "virtual:sm_90a")
    assert seen == {"mov.u32", "setp.eq.s32", "bra", "ret"}
