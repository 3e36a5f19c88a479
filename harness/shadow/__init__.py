"""Computes llama.cpp's own graph again, op by op, from llama.cpp's own inputs."""
