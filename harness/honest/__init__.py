"""Honest engines with other designs than llama.cpp's: none of them may be accused."""
