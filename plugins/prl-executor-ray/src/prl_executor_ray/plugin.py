"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import ExecutorEntry, hookimpl


@hookimpl
def prl_executors() -> list[ExecutorEntry]:
    """Offer workers on Ray."""
    return [
        ExecutorEntry(
            name="ray",
            target="prl_executor_ray.executor:create",
            options="prl_executor_ray.options:RayOptions",
            needs=("ray",),
            install="pip install prl-executor-ray",
            summary="rollouts are played by Ray actors, on this machine or a cluster",
        )
    ]
