"""Finds the first op or segment of a graph where two engines diverge."""
