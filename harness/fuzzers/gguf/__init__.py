"""Valid, unusual and broken files for readers of GGUF."""
