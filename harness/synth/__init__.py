"""Small seeded models. The same recipe gives the same bytes on every machine."""
