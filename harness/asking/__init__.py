"""Sessions with one engine in its own process or environment; facts about a model."""
