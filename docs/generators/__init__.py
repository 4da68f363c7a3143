"""One page of the reference a module."""
