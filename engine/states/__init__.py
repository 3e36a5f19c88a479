"""State files of llama.cpp (saved sessions): a strict reader, and a comparison with a model."""
