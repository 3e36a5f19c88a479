"""Benchmarks: ours, llama.cpp's and its peers' speed, side by side in one run."""
