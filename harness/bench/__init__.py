"""Benchmarks: the speed of our engine, of llama.cpp and of other programs, side by side in one
run."""
