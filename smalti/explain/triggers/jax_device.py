"""Before tests of JAX's GPU kernels in a child: a GPU is pretended, so that everything up to its compiler runs.

Kernels are traced and lowered as for the compute capability named by `setting`; then zeros stand for what a GPU would
compute. With the setting "cpu" nothing is pretended. Runs in the child only, under the Python that has JAX.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
from jax._src import test_util, xla_bridge
from jax._src.interpreters import mlir

_lower = mgpu.core._mosaic_gpu_lowering_rule
_per_platform = mlir.lower_per_platform
_backend = xla_bridge._get_backend_uncached


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _lowered(ctx: Any, *args: Any, **params: Any) -> Any:
    """The real rule; its call of the GPU runtime is taken out again."""
    results = list(_lower(ctx, *args, **params))
    if results:
        results[0].owner.erase()
    return [mlir.full_like_aval(ctx, 0, aval) for aval in ctx.avals_out]


def _as_cuda(ctx: Any, description: str, rules: Any, *rest: Any, **params: Any) -> Any:
    if description == "pallas_call" and "cuda" in rules:
        rules = {**rules, "cpu": rules["cuda"]}
    return _per_platform(ctx, description, rules, *rest, **params)


def _any_backend(platform: Any = None) -> Any:
    return _backend("cpu" if platform in ("gpu", "cuda") else platform)


def pretend(capability: tuple[int, ...]) -> None:
    """From now on JAX's test helpers claim a GPU of this compute capability, and kernels are lowered for it."""
    claims: dict[str, Any] = {
        "is_device_cuda": lambda: True,
        "test_device_matches": lambda kinds: bool({"cuda", "gpu"} & set(kinds)),
        "is_cuda_compute_capability_at_least": lambda text: capability >= _version(text),
        "is_cuda_compute_capability_equal": lambda text: capability == _version(text),
        "is_cuda_version_at_least": lambda major, minor: True,
    }
    for name, claim in claims.items():
        setattr(test_util, name, claim)
    mgpu.core._mosaic_gpu_lowering_rule = _lowered
    mgpu.core._infer_arch = lambda: capability
    mlir.register_lowering(mgpu.core.mosaic_gpu_p, _lowered, "cpu")
    mlir.lower_per_platform = _as_cuda
    xla_bridge._get_backend_uncached = _any_backend


def after() -> None:
    """Between two tests: what one has compiled is not kept for the next."""
    jax.clear_caches()


setting = str(globals().get("setting", "cpu"))
if setting != "cpu":
    pretend(_version(setting))
