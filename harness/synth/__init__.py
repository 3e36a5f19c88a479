"""Small seeded models: a recipe in, the same bytes out on every machine."""
