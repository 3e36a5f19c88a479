"""Self-tests: are wrong engines found, and honest ones not accused?"""
