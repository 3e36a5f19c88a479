"""Comparison: the error of an array, the limit for an honest engine, and the engine at fault."""
