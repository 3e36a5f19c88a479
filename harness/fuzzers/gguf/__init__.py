"""Files, valid, unusual and broken, for readers of GGUF."""
