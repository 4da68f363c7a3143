"""Put a run together: every part by name through the registry, in one process or in several."""
