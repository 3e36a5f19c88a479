"""Foreign engines, each in its own Python environment. The programs in programs/ run them."""
