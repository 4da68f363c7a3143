"""Weights from the trainer to engines over a process group, instead of through a directory."""
