"""Samplers: formulas on a list of candidates, one file per sampler, registered by name.

Definitions are ours. Accidents of llama.cpp's standard library or code are options of `parts.ways`,
so that its answers can be reproduced bit for bit.
"""
