"""Samplers of any engine, held stage by stage against our definitions."""
