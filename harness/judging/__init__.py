"""Comparison: the error of an array, the limit of an honest engine, the engine at fault."""
