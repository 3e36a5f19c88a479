"""Trials of wrong engines that show logits alone: are the layer and the part named?"""
