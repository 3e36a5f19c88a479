"""Comparison: how far off an array is, how far an honest engine may be, who is at fault."""
