"""The instruction table: every PTX instruction that is known, as data.

`TABLE.form("ld.global.u32")` gives the meaning of a spelling.
"""

from smalti.ptx.isa import (
    barrier,
    control,
    conversion,
    floating,
    integer,
    memory,
    mma,
    tcgen05,
    tma,
    warp,
    wgmma,
)
from smalti.ptx.isa.row import Form, Need, OperandSpec, Row, Table

__all__ = ["FAMILIES", "TABLE", "Form", "Need", "OperandSpec", "Row", "Table"]

FAMILIES = {
    "integer": integer.ROWS,
    "floating": floating.ROWS,
    "conversion": conversion.ROWS,
    "memory": memory.ROWS,
    "control": control.ROWS,
    "barrier": barrier.ROWS,
    "tma": tma.ROWS,
    "warp": warp.ROWS,
    "mma": mma.ROWS,
    "wgmma": wgmma.ROWS,
    "tcgen05": tcgen05.ROWS,
}

TABLE = Table([row for rows in FAMILIES.values() for row in rows])
