"""The conformance kit against a sample plugin with seeded faults."""
