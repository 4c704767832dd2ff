"""Layouts as values (`linear`) and the physical layouts of the hardware built from them: `swizzle`, `shared`,
`descriptors`, `instruction`, `fragments`, `tensor`, `tensor_map`; `draw` makes pictures. Knows nothing of PTX text.
"""
