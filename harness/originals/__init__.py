"""Compares a GGUF file with the Hugging Face checkpoint that it was made from."""
