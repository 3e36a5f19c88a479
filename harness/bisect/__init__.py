"""Bisects a divergence to the layer, the op and the elements where two engines first differ."""
