"""Kimi K2 renderers and parsers."""
