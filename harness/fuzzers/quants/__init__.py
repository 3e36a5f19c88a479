"""Blocks of weight formats, for decoders of weights."""
