"""Servers under test: llama-server through its own endpoints, others through OpenAI's
completions."""
