"""gguf-py as an engine: it reads files."""
