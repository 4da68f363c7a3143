"""Attention over packed sequences: the kernel every machine has, and how kernels reach a model's layers."""
