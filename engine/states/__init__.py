"""State files of llama.cpp (saved sessions): read strictly, and held against a model."""
