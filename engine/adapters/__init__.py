"""Adapters of a model: LoRA files change its products, control vectors change layer outputs."""
