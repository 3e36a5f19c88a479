"""Numerics, three times: `reference` is read, `mirror` adds ggml's roundings, `fast` is run.

All have the methods of `reference.ReferenceOps`, with the same arguments, shapes and dtypes.
"""
