"""Trials of wrong engines that show only logits: the layer and the part must be named."""
