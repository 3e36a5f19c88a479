"""Adapters of a model: files that change its products (LoRA) or its layers' results (vectors)."""
