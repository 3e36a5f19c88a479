"""Activation formats: llama.cpp converts activations to them before it multiplies by weights."""
