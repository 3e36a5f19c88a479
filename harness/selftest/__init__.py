"""Self-tests: wrong engines must be found, and honest ones not accused."""
