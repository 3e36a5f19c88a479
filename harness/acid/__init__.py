"""Models with constructed weights. Their text is a report on the engine that runs them."""
