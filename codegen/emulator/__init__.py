"""A PTX interpreter: what the text of a kernel does, on NumPy arrays, and what is wrong with it.

>>> import numpy as np
>>> text = '''.visible .entry double(.param .u64 p) {
...   .reg .u64 %a<2>; .reg .u32 %t; .reg .f32 %x;
...   ld.param.u64 %a0, [p]; mov.u32 %t, %tid.x; mad.wide.u32 %a1, %t, 4, %a0;
...   ld.global.f32 %x, [%a1]; add.f32 %x, %x, %x; st.global.f32 [%a1], %x; ret; }'''
>>> memory, numbers = Memory(), np.arange(4, dtype=np.float32)
>>> report = launch(Module.parse(text), "double", 1, 4, [memory.allocate(numbers)], memory)
>>> numbers, report.findings
(array([0., 2., 4., 6.], dtype=float32), ())
>>> report = launch(Module.parse(text), "double", 1, 5, [memory.allocate(numbers, "x")], memory)
>>> print(report.findings[0].message)
warp 0 of CTA 0: 4 B at 0 B past the end of x, which has 16 B

It shares nothing with the emitter: each is the other's test.  Asynchronous operations complete as
late, as early or as randomly as the documented order allows; accesses of shared and global memory
are held against a happens-before relation with proxies (``clocks.py``) and scopes (``scopes.py``),
of warps or of single threads.  What has no form in the table of ``forms.py`` is an error.  Not
modelled: L1 and the constant cache, time.

Source: PTX ISA 9.0.
"""

from .checking import Checked, Order, check
from .launching import FAMILIES, Module, launch
from .memory import Memory
from .report import Finding, Report
from .tensor_map import TensorMap

__all__ = [
    "FAMILIES",
    "Checked",
    "Finding",
    "Memory",
    "Module",
    "Order",
    "Report",
    "TensorMap",
    "check",
    "launch",
]
