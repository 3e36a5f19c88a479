"""Diagnosis: finds the known mistake that reproduces an engine's answers."""
