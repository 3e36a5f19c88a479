"""Tests with models of every architecture in which one element is changed: does `bisect` name the
changed tensor?"""
