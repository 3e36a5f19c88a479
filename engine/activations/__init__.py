"""Activation formats: what llama.cpp makes of activations before it multiplies by weights."""
