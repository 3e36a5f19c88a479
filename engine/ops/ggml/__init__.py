"""ggml's ops as nodes of a graph: the result of each, computed from its sources, and its bound."""
