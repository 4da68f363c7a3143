"""GLM renderers and parsers."""
