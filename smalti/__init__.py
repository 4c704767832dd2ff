"""Smalti: NVIDIA tensor-core kernels in Python, on a GPU or on a virtual one."""
