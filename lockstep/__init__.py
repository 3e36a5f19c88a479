"""Lockstep: conformance and differential testing for GGUF language-model engines."""
