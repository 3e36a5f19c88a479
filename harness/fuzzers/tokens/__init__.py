"""Texts and ids for tokenizers."""
