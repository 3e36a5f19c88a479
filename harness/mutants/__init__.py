"""Engines with one known mistake each. The harness must catch and locate all."""
