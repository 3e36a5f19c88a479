"""Models with constructed weights: their text is a report on the engine that runs them."""
