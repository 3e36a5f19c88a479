"""gguf-py as an engine that reads files."""
