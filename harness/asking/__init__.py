"""Sessions with one engine in a process or an environment of its own; facts of a model."""
