"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import EnvironmentEntry, hookimpl


@hookimpl
def prl_environments() -> list[EnvironmentEntry]:
    """Offer the tasksets of verifiers."""
    return [
        EnvironmentEntry(
            name="verifiers",
            target="prl_env_verifiers.environment:create",
            options="prl_env_verifiers.options:VerifiersOptions",
            needs=("verifiers",),
            install="pip install 'prl-env-verifiers[verifiers]'",
            summary="a taskset of verifiers, worked on by its harness behind the gateway",
        )
    ]
