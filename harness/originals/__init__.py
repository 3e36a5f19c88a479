"""Compares a GGUF file with the checkpoint of Hugging Face that it was made from."""
