"""Measures that `make lint` takes and ruff cannot."""
