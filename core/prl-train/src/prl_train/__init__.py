"""Orchestrator and trainer."""
