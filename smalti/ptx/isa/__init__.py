"""The instruction table: every PTX instruction that is known, as data.

`TABLE.form("ld.global.u32")` gives the meaning of a spelling.
"""

from smalti.ptx.isa import barrier, control, integer, memory, tma, warp, wgmma
from smalti.ptx.isa.row import Form, Need, OperandSpec, Row, Table

__all__ = ["TABLE", "Form", "Need", "OperandSpec", "Row", "Table"]

FAMILIES = {
    "integer": integer.ROWS,
    "memory": memory.ROWS,
    "control": control.ROWS,
    "barrier": barrier.ROWS,
    "tma": tma.ROWS,
    "warp": warp.ROWS,
    "wgmma": wgmma.ROWS,
}

TABLE = Table([row for rows in FAMILIES.values() for row in rows])
