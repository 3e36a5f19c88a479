"""ggml's ops as they stand in a graph: what each computes from its sources, and how exactly."""
