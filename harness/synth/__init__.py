"""Small seeded models. A recipe gives the same bytes on every machine."""
