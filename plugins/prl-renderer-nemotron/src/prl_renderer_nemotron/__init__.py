"""Nemotron-3 renderers and parsers."""
