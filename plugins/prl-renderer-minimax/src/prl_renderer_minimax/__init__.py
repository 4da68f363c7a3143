"""MiniMax renderers and parser."""
