"""A product ready to run: the kernel that was chosen, its arguments, and what was copied to make them.

Knows kernels only by their interface, no device and no architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.lang.call import execute, facts_of_call
from smalti.lang.kernel import Kernel
from smalti.lang.plan import Plan
from smalti.run.devices import Device
from smalti.run.devices import device as find
from smalti.run.dtypes import numpy_dtype
from smalti.run.execute import Result

__all__ = ["Prepared"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What `matmul` runs: `shape` (M, N, K), `result` the dtype of D, `options` of the kernel, `copies` as text.

    operands   a [M, K] and b [K, N] as they are multiplied: arrays, or block-scaled values
    arrays     arguments of the kernel; `read_as` names those whose bits are another format
    """

    kernel: Kernel
    shape: tuple[int, int, int]
    operands: tuple[Any, Any]
    arrays: tuple[Any, ...]
    result: str
    options: Mapping[str, Any]
    read_as: Mapping[str, str]
    copies: tuple[str, ...] = ()

    def plan(self) -> Plan:
        """The plan of the kernel, and what was copied before it."""
        known = facts_of_call(self.kernel, self.arrays, self.read_as, {"d": self.result})
        return replace(self.kernel.traced(known, dict(self.options)).plan, copies=list(self.copies))

    @property
    def empty(self) -> bool:
        """Nothing to compute: an empty result, or sums of nothing, which are zero."""
        return 0 in self.shape

    def execute(self, device: str | Device | None = None, **how: Any) -> Result:
        """The product on the device, as output "d"; `how` as in `smalti.run.execute.run`. Nothing is launched for an
        empty one."""
        if self.empty:
            m, n, _ = self.shape
            return Result({"d": np.zeros((m, n), numpy_dtype(self.result))}, find(device, arch=self.kernel.arch), 0.0)
        named = {"d": self.result, **self.options}
        return execute(self.kernel, self.arrays, device, self.read_as, named, **how)

    def run(self, device: str | Device | None = None, **how: Any) -> NDArray[Any]:
        """The product on the device."""
        return self.execute(device, **how).outputs["d"]
