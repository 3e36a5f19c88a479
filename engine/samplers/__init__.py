"""Samplers: formulas on a list of candidates, one file per sampler, registered by name.

The definitions are Lockstep's. Accidental behaviour of llama.cpp or its standard library is an
option in `parts.ways`, so that llama.cpp's answers can be reproduced bit for bit.
"""
