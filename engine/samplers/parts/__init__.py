"""Shared parts of samplers: the list, its arithmetic, draws, constructors and chains."""
