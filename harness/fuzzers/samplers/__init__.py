"""Sampler chains of any engine, held against their definitions on logits that hurt."""
