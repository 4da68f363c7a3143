"""Sinks that send a run's metrics to other programs."""
