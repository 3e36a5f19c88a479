"""Is what is wrong found, and nothing else? Of ourselves and of foreign engines."""
