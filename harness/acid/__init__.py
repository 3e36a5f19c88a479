"""Models whose weights are constructed: what they write is a report on the engine that runs them."""
