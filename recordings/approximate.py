"""The approximate functions of a Hopper GPU over all of f32: a hash of the 2^32 results, how far they are from exact ones,
and what they give for special inputs. A part of record.py; takes minutes on a few cores.

Errors are in units of the last place (ulp) of the correctly rounded result, or absolute where a function has zeros. The
reference is float64. The .ftz forms are compared with flush(f(flush(x))), the odd and even ones with their other half.
"""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from programs import HEADER

from smalti.run import Buffer, Launch, Pointer, Scalar, run

FILE = Path(__file__).with_name("approximate.json")
SAMPLES = Path(__file__).with_name("approximate.npz")
CHUNK = 1 << 25
PART = 1 << 13  # inputs judged at a time: they stay in the cache
SIGN = np.uint32(0x80000000)
Bits = np.ndarray[Any, np.dtype[Any]]

SPECIALS = np.array(
    [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x40000000, 0x42FFFFFF, 0x43000000, 0x43180000, 0x7E800001, 0x7F000000, 0x7F7FFFFF,
     0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF], np.uint32,
)  # fmt: skip
SPECIALS = np.concatenate([SPECIALS, SPECIALS | SIGN])


class Region(NamedTuple):
    """Inputs low <= |x| < high, whose error is bounded in one way."""

    name: str
    low: float
    high: float
    absolute: bool = False


class Function(NamedTuple):
    reference: Any  # of float64
    symmetry: str  # odd, even, or "": NaN for negative inputs ("positive") or none
    regions: tuple[Region, ...]


_ALL = (Region("all", 0.0, np.inf),)
_WAVE = (
    Region("|x| <= pi", 0, float(np.float32(np.pi)), True),
    Region("|x| <= 100 pi", 0, float(np.float32(100 * np.pi)), True),
)
FUNCTIONS: dict[str, Function] = {
    "ex2": Function(np.exp2, "", _ALL), "rcp": Function(lambda x: 1 / x, "odd", _ALL),
    "sqrt": Function(np.sqrt, "positive", _ALL), "rsqrt": Function(lambda x: 1 / np.sqrt(x), "positive", _ALL),
    "lg2": Function(np.log2, "positive", (Region("0.5 to 2", 0.5, 2, True), Region("below 0.5", 0, 0.5), Region("from 2", 2, np.inf))),
    "tanh": Function(np.tanh, "odd", _ALL), "sin": Function(np.sin, "odd", _WAVE), "cos": Function(np.cos, "even", _WAVE),
}  # fmt: skip
# Forms of 16-bit types: all 2^16 inputs.
HALVES = ("ex2.approx.f16", "ex2.approx.ftz.bf16", "tanh.approx.f16", "tanh.approx.bf16")


def spelling(name: str, ftz: bool) -> str:
    return f"{name}.approx{'.ftz' if ftz else ''}.f32"


def results(name: str, first: int, count: int, device: str) -> tuple[Bits, int, int]:
    """f of the f32 words from `first` on; how often the .ftz form is not flush(f(flush(x))), and f(-x) not as f(x)."""
    f = FUNCTIONS[name]
    ftz = (
        ""
        if name == "tanh"
        else f"""
and.b32 %r4, %r2, 0x7F800000;
setp.eq.u32 %p0, %r4, 0;
and.b32 %r5, %r2, 0x80000000;
selp.b32 %r5, %r5, %r2, %p0;
mov.b32 %f2, %r5;
{spelling(name, False)} %f2, %f2;
mov.b32 %r5, %f2;
and.b32 %r4, %r5, 0x7F800000;
setp.eq.u32 %p0, %r4, 0;
and.b32 %r4, %r5, 0x80000000;
selp.b32 %r5, %r4, %r5, %p0;
{spelling(name, True)} %f3, %f0;
mov.b32 %r4, %f3;
setp.ne.u32 %p0, %r4, %r5;
@%p0 red.global.add.u32 [%x2], 1;"""
    )
    turn = {"odd": "0x80000000", "even": "0"}.get(f.symmetry, "")
    symmetry = (
        turn
        and f"""
neg.f32 %f2, %f0;
{spelling(name, False)} %f2, %f2;
mov.b32 %r4, %f2;
mov.b32 %r5, %f1;
setp.num.f32 %p1, %f0, %f0;
xor.b32 %r4, %r4, {turn};
setp.ne.and.u32 %p0, %r4, %r5, %p1;
setp.num.and.f32 %p0, %f1, %f1, %p0;
@%p0 red.global.add.u32 [%x2+4], 1;"""
    )
    text = f"""{HEADER}.visible .entry kernel(.param .u64 d, .param .u64 c, .param .u32 first)
{{
.reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %x<3>; .reg .pred %p<2>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mad.lo.u32 %r1, %r1, 1024, %r0;
ld.param.u32 %r2, [first];
ld.param.u64 %x0, [d];
ld.param.u64 %x2, [c];
add.u32 %r2, %r2, %r1;
mov.b32 %f0, %r2;
{spelling(name, False)} %f1, %f0;
mad.wide.u32 %x1, %r1, 4, %x0;
st.global.f32 [%x1], %f1;{ftz}{symmetry}
ret;
}}
"""
    buffers = {
        "d": Buffer("d", "u32", (count,), output=True),
        "c": Buffer("c", "u32", (2,), data=np.zeros(8, np.uint8), output=True),
    }
    params = (Pointer("d"), Pointer("c"), Scalar("u32", first))
    out = run(
        text, Launch("kernel", (count // 1024, 1, 1), (1024, 1, 1), params, buffers), device, checks=False
    ).outputs
    return np.asarray(out["d"]), int(out["c"][0]), int(out["c"][1])


def at(opcode: str, inputs: Bits, device: str) -> Bits:
    """f of chosen words, whose number must be a multiple of 32."""
    text = f"""{HEADER}.visible .entry kernel(.param .u64 a, .param .u64 d)
{{
.reg .b32 %r<3>; .reg .f32 %f<2>; .reg .b64 %x<4>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mad.lo.u32 %r1, %r1, 32, %r0;
ld.param.u64 %x0, [a];
ld.param.u64 %x1, [d];
mad.wide.u32 %x2, %r1, 4, %x0;
mad.wide.u32 %x3, %r1, 4, %x1;
ld.global.f32 %f0, [%x2];
{opcode} %f1, %f0;
st.global.f32 [%x3], %f1;
ret;
}}
"""
    a = Buffer("a", "u8", (inputs.nbytes,), data=np.ascontiguousarray(inputs).view(np.uint8))
    d = Buffer("d", "u32", (len(inputs),), output=True)
    launch = Launch("kernel", (len(inputs) // 32, 1, 1), (32, 1, 1), (Pointer("a"), Pointer("d")), {"a": a, "d": d})
    return np.asarray(run(text, launch, device, checks=False).outputs["d"])


def errors(name: str, inputs: Bits, got: Bits, worst: dict[str, Any]) -> None:
    """Add to `worst`: by region the largest error and where; results of another class (NaN, Inf, zero) than exact ones."""
    f = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        x, y = inputs.view(np.float32).astype(np.float64), got.view(np.float32).astype(np.float64)
        exact = f.reference(x)
        rounded = exact.astype(np.float32)
    exponent = (rounded.view(np.uint32) >> 23 & 0xFF).astype(np.int64)
    unit = (np.maximum(exponent, 1) - 150 + 1023 << 52).view(np.float64)
    number = np.isfinite(rounded) & np.isfinite(y)
    with np.errstate(all="ignore"):
        distance = np.abs(y - exact)
        ulps = distance / unit
    magnitude = np.abs(x)
    tiny = exponent == 0  # subnormal and zero results are judged apart
    for region in f.regions:
        here = (
            number
            & (magnitude >= region.low)
            & (magnitude <= region.high if region.absolute else magnitude < region.high)
        )
        if region.absolute:
            _largest(worst, region.name, distance, here, inputs)
        else:
            _largest(worst, region.name, ulps, here & ~tiny, inputs)
            _largest(worst, f"{region.name}, subnormal results", ulps, here & tiny, inputs)
    other = (np.isnan(rounded) != np.isnan(y)) | (np.isinf(rounded) != np.isinf(y))
    if other.any():
        entry = worst.setdefault("class differs", [0, f"{int(inputs[other][0]):08x}"])
        entry[0] += int(other.sum())


def _largest(worst: dict[str, Any], key: str, error: Bits, here: Bits, inputs: Bits) -> None:
    if not here.any():
        return
    masked = np.where(here, error, -1.0)
    i = int(masked.argmax())
    if key not in worst or masked[i] > worst[key][0]:
        worst[key] = [float(masked[i]), f"{int(inputs[i]):08x}"]


def part(name: str, first: int, device: str) -> tuple[bytes, dict[str, Any], int, int]:
    """CHUNK results: their hash, the worst errors among them, and the counts of `results`."""
    f, worst = FUNCTIONS[name], dict[str, Any]()
    got, flushed, mirrored = results(name, first, CHUNK, device)
    digest = hashlib.sha256(got.tobytes()).digest()
    negative = first >= 1 << 31
    if not negative or f.symmetry == "" or (f.symmetry == "positive" and not np.isnan(got.view(np.float32)).all()):
        for start in range(0, CHUNK, PART):
            inputs = np.arange(first + start, first + start + PART, dtype=np.uint64).astype(np.uint32)
            errors(name, inputs, got[start : start + PART], worst)
    return digest, worst, flushed, mirrored


def join(name: str, parts: list[tuple[bytes, dict[str, Any], int, int]], device: str) -> dict[str, Any]:
    """What is kept of a function; its hash is that of the hashes of CHUNK results each, in order."""
    worst: dict[str, Any] = {}
    for _, found, _, _ in parts:
        for key, (value, where) in found.items():
            if key == "class differs":
                worst[key] = [worst[key][0] + value if key in worst else value, worst.get(key, [0, where])[1]]
            elif key not in worst or value > worst[key][0]:
                worst[key] = [value, where]
    found = {
        "sha256": hashlib.sha256(b"".join(p[0] for p in parts)).hexdigest(),
        "worst": worst,
        "ftz_differs": sum(p[2] for p in parts),
        "symmetry_differs": sum(p[3] for p in parts),
    }
    for ftz in (False, True) if name != "tanh" else (False,):
        special = at(spelling(name, ftz), SPECIALS, device)
        found["ftz_specials" if ftz else "specials"] = {
            f"{int(i):08x}": f"{int(o):08x}" for i, o in zip(SPECIALS, special, strict=True)
        }
    return found


def halves(opcode: str, device: str) -> Bits:
    """All results of a function of a 16-bit type."""
    text = f"""{HEADER}.visible .entry kernel(.param .u64 d)
{{
.reg .b32 %r<3>; .reg .b16 %h<2>; .reg .b64 %x<2>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mad.lo.u32 %r1, %r1, 1024, %r0;
ld.param.u64 %x0, [d];
cvt.u16.u32 %h0, %r1;
{opcode} %h1, %h0;
mad.wide.u32 %x1, %r1, 2, %x0;
st.global.b16 [%x1], %h1;
ret;
}}
"""
    d = Buffer("d", "u16", (65536,), output=True)
    return np.asarray(
        run(text, Launch("kernel", (64, 1, 1), (1024, 1, 1), (Pointer("d"),), {"d": d}), device, checks=False).outputs[
            "d"
        ]
    )


def sample_inputs(name: str) -> Bits:
    """4096 inputs, most of them where the function is neither constant nor NaN."""
    from programs import raw

    bits = raw(f"sample {name}", 4096, 32)
    low, high = {"ex2": (100, 134), "tanh": (100, 131), "sin": (100, 134), "cos": (100, 134)}.get(name, (0, 254))
    exponent = (low + (bits >> 23 & 0xFF) % (high - low + 1)).astype(np.uint32)
    keep = np.uint32(0x007FFFFF) if FUNCTIONS[name].symmetry == "positive" else np.uint32(0x807FFFFF)
    return np.asarray((bits & keep) | exponent << np.uint32(23), np.uint32)


def record(device: str, jobs: int) -> tuple[dict[str, Any], dict[str, Bits]]:
    tasks = [(name, first) for name in FUNCTIONS for first in range(0, 1 << 32, CHUNK)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        done = list(pool.map(part, *zip(*tasks, strict=True), [device] * len(tasks)))
    found = {
        name: join(name, [d for d, t in zip(done, tasks, strict=True) if t[0] == name], device) for name in FUNCTIONS
    }
    samples = {name: at(spelling(name, False), sample_inputs(name), device) for name in FUNCTIONS}
    samples |= {opcode: halves(opcode, device) for opcode in HALVES}
    return found, samples


def main(verb: str, device: str, jobs: int, out: Path = FILE.parent) -> bool:
    found, samples = record(device, jobs)
    for name, f in found.items():
        for region, (error, where) in f["worst"].items():
            print(f"{name:<6}{region:<32}{error:.6g} at {where}")
        print(
            f"{name:<6}.ftz is not flush(f(flush(x))) {f['ftz_differs']} times, f(-x) not as f(x) {f['symmetry_differs']} times"
        )
    if verb == "write":
        from smalti.run.devices import device as find

        head = {"format": 2, "device": find(device).name, "date": date.today().isoformat(), "functions": found}
        (out / FILE.name).write_text(json.dumps(head, indent=1) + "\n")
        np.savez_compressed(out / SAMPLES.name, **samples)  # type: ignore[arg-type]
        return True
    known = json.loads(FILE.read_text())["functions"]
    wrong = [n for n in found if found[n] != known[n]]
    print(f"{len(found) - len(wrong)} of {len(found)} approximate functions as recorded", *wrong)
    return not wrong
