"""Vectors of single operations: what goes in, what comes out, and how an answer is judged."""
