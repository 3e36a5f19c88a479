"""Foreign engines, each in its own environment. The programs in programs/ ask them."""
