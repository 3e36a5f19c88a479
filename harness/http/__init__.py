"""Servers under test: llama-server through its own endpoints, and all other servers through
OpenAI's completions."""
