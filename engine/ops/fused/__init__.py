"""Fused and composite operations of engines' interfaces: the result of each, and its bound."""
