"""Compares the samplers of any engine, stage by stage, with our definitions."""
