"""Planted faults: ways in which real systems skip or repeat prompts, each as a small collector."""
