"""Fuzzers: each is a way to make cases without end and a check that every case must pass."""
