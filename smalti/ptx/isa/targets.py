"""The targets of PTX: since which version, and how much shared memory a CTA may have."""

from __future__ import annotations

# Lowest PTX version of each target (11.1.2; the newer ones as the assembler answers).
LOWEST_VERSION: dict[str, tuple[int, int]] = {
    "sm_50": (4, 0),
    "sm_52": (4, 1),
    "sm_53": (4, 2),
    "sm_60": (5, 0),
    "sm_61": (5, 0),
    "sm_62": (5, 0),
    "sm_70": (6, 0),
    "sm_72": (6, 1),
    "sm_75": (6, 3),
    "sm_80": (7, 0),
    "sm_86": (7, 1),
    "sm_87": (7, 4),
    "sm_88": (9, 0),
    "sm_89": (7, 8),
    "sm_90": (7, 8),
    "sm_90a": (8, 0),
    "sm_100": (8, 6),
    "sm_100f": (8, 8),
    "sm_100a": (8, 6),
    "sm_103": (8, 8),
    "sm_103f": (8, 8),
    "sm_103a": (8, 8),
    "sm_110": (9, 0),
    "sm_110f": (9, 0),
    "sm_110a": (9, 0),
    "sm_120": (8, 7),
    "sm_120f": (8, 8),
    "sm_120a": (8, 7),
    "sm_121": (8, 8),
    "sm_121f": (8, 8),
    "sm_121a": (8, 8),
}

# Bytes of shared memory of one CTA, dynamic and opted in (CUDA programming guide, compute capabilities).
_SHARED_KIB = {
    (50, 62): 48,
    (70, 72): 96,
    (75, 75): 64,
    (80, 80): 163,
    (87, 87): 163,
    (86, 89): 99,
    (90, 110): 227,
    (120, 121): 99,
}


def shared_limit(target: str) -> int:
    """The most shared memory that a CTA can have on `target`, in bytes."""
    number = int("".join(c for c in target if c.isdigit()))
    for (low, high), kib in _SHARED_KIB.items():
        if low <= number <= high:
            return kib * 1024
    raise AssertionError(f"no such target: {target}")
