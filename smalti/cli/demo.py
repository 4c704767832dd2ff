"""`smalti demo`: the main job on generated weights: quantise two matrices and multiply them on a virtual Blackwell."""

from __future__ import annotations

import argparse

NAME = "demo"
HELP = "multiply block-scaled matrices on a virtual Blackwell GPU"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", default="mxfp8", help="mxfp8 (default), mxfp8_e5m2, mxfp4, nvfp4")


def run(arguments: argparse.Namespace) -> int:
    """Weights like those of a trained layer: rows of different spread, a few outliers, activations behind a ReLU."""
    import numpy as np

    from smalti.cli.matmul import multiply

    random = np.random.default_rng(2026)
    m, k, n = 300, 1056, 520
    spread = np.exp2(random.normal(-4, 1, (1, n)))
    weights = (random.standard_t(5, (k, n)) * spread).astype(np.float32)
    activations = np.maximum(random.standard_normal((m, k)), 0).astype(np.float32)
    activations[:, random.integers(0, k, 5)] *= 30
    print(f"demo     activations {m}x{k} by weights {k}x{n}, both quantised to {arguments.format}")
    multiply(
        activations, weights, format=arguments.format, precision=None, dtype=None, device="virtual:sm_100a", seed=None,
        checks=True, whole_plan=False,
    )  # fmt: skip
    return 0
