"""The first op or segment of a graph where two engines part."""
