"""Foreign engines, each in its own environment; programs/ asks them."""
