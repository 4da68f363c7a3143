"""Tool calls written as a list of Python calls."""
