"""Servers under test: llama-server by its own endpoints, others by OpenAI's completions."""
