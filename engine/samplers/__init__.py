"""Samplers: formulas on a list of candidates, one file per sampler, registered by name.

Definitions are ours. What llama.cpp does besides, by accident of its standard library or of its
code, is an option of `parts.ways`, so that its answers can be had bit for bit.
"""
