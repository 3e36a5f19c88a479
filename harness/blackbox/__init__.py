"""Engines that show no tensors: the question is put into the model's file instead."""
