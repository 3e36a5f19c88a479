"""Honest engines with other designs than llama.cpp's. No suite may accuse them."""
