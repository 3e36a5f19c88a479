"""Honest engines: correct engines whose design differs from llama.cpp's. No suite may accuse
them."""
