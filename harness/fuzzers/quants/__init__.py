"""Blocks of weight formats, for decoders."""
