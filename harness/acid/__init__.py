"""Models with constructed weights: what they write is a report on the engine that runs them."""
