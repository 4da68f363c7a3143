"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import SinkEntry, hookimpl


@hookimpl
def prl_sinks() -> list[SinkEntry]:
    """Offer one sink for each program."""
    return [
        SinkEntry(
            name="wandb",
            target="prl_sinks.wandb_sink:create",
            options="prl_sinks.options:WandbOptions",
            needs=("wandb",),
            install="pip install 'prl-sinks[wandb]'",
            summary="Weights & Biases; a resumed run goes on in the same one",
        ),
        SinkEntry(
            name="trackio",
            target="prl_sinks.trackio_sink:create",
            options="prl_sinks.options:TrackioOptions",
            needs=("trackio",),
            install="pip install 'prl-sinks[trackio]'",
            summary="Trackio: a local dashboard, or one on a server of yours",
        ),
        SinkEntry(
            name="tensorboard",
            target="prl_sinks.tensorboard_sink:create",
            options="prl_sinks.options:TensorboardOptions",
            needs=("tensorboardX",),
            install="pip install 'prl-sinks[tensorboard]'",
            summary="TensorBoard event files in the run folder",
        ),
        SinkEntry(
            name="prometheus",
            target="prl_sinks.prometheus_sink:create",
            options="prl_sinks.options:PrometheusOptions",
            needs=("prometheus_client",),
            install="pip install 'prl-sinks[prometheus]'",
            summary="Prometheus: the newest step's metrics over HTTP or in a textfile",
        ),
    ]
