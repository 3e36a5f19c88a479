"""Fused and composite operations that engines offer: the result of each, and its bound."""
