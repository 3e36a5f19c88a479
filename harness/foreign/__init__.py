"""Engines that nobody here wrote, each in an environment of its own; programs/ asks them."""
