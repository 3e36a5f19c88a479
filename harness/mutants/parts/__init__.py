"""Parts of wrong engines."""
