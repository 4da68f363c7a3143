"""DeepSeek renderers and parsers."""
