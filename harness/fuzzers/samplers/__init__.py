"""Sampler chains of any engine, compared with their definitions on difficult logits."""
