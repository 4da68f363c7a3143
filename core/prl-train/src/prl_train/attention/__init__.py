"""Attention over packed sequences: the kernels every machine has, and how kernels reach a model's layers."""

AUTO = "auto"
"""The name in a configuration that leaves the choice of a kernel to the model and the machine."""
