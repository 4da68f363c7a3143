"""Rollout workers on Ray."""
