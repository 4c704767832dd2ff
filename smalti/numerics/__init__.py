"""Number formats and the bit-accurate arithmetic of tensor cores: `formats` (decode), `convert` (round, cvt), `kinds`
(what each instruction computes, and how well that is known), `fused_sum` and `sparse` (matrix products), `quantize`
(block scales). Arrays in, arrays out; knows nothing of layouts, PTX or devices.
"""
