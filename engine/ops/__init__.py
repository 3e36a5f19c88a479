"""Numerics, in three forms: `reference` is for reading, `mirror` adds ggml's roundings, `fast` is
for speed.

All have the methods of `reference.ReferenceOps`, with the same arguments, shapes and dtypes.
"""
