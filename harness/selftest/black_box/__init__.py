"""Trials of wrong engines that show only logits. The harness must name the layer and the part."""
