"""Engines that are right and compute otherwise than llama.cpp: none of them may be accused."""
