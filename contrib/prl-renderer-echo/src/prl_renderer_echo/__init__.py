"""The echo chat format."""
