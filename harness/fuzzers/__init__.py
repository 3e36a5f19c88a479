"""Fuzzers. Each one makes an endless series of cases, and has a check that every case must pass."""
