"""Numerics in three forms: `reference` is easy to read, `mirror` adds ggml's roundings, `fast` is
for speed.

All forms have the methods of `reference.ReferenceOps`, with the same arguments, shapes and dtypes.
"""
