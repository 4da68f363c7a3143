"""Qwen renderers and parsers."""
