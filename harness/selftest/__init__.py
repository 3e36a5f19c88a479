"""Self-tests: the harness must find wrong engines, and must not accuse honest engines."""
