"""Fused and composite operations of engines' interfaces: what each computes, and how exactly."""
