"""The worker half: loading weights where the model lives."""
