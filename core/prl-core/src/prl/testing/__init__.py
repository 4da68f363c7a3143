"""The testing room."""
