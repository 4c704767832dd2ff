"""The names of PTX's special registers (PTX 10), without the percent sign, and their types."""

from __future__ import annotations

_VECTORS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")

SPECIAL: dict[str, str] = {
    **{f"{name}.{axis}": "u32" for name in _VECTORS for axis in "xyz"},
    **dict.fromkeys(("laneid", "warpid", "nwarpid", "smid", "nsmid"), "u32"),
    "gridid": "u64",
    "is_explicit_cluster": "pred",
    **dict.fromkeys(("cluster_ctarank", "cluster_nctarank"), "u32"),
    **{f"lanemask_{which}": "u32" for which in ("eq", "le", "lt", "ge", "gt")},
    **dict.fromkeys(("clock", "clock_hi"), "u32"),
    "clock64": "u64",
    **{f"pm{n}": "u32" for n in range(8)},
    **{f"pm{n}_64": "u64" for n in range(8)},
    **{f"envreg{n}": "b32" for n in range(32)},
    "globaltimer": "u64",
    **dict.fromkeys(("globaltimer_lo", "globaltimer_hi"), "u32"),
    **{f"reserved_smem_offset_{which}": "b32" for which in ("begin", "end", "cap", "0", "1")},
    **dict.fromkeys(("total_smem_size", "aggr_smem_size", "dynamic_smem_size"), "u32"),
    "current_graph_exec": "u64",
}
