"""Tasksets and harnesses of verifiers, played through prl's gateway."""
