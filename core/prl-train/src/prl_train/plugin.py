"""What prl-train offers. Light: everything else is imported behind a record's target."""

from __future__ import annotations

from prl.plugin import AttentionEntry, CheckEntry, CommandEntry, EnvironmentEntry, SinkEntry, hookimpl


@hookimpl
def prl_environments() -> list[EnvironmentEntry]:
    """Offer the two small environments."""
    return [
        EnvironmentEntry(
            name="reverse-text",
            target="prl_train.environments.reverse_text:create",
            options="prl_train.environments.reverse_text:ReverseTextOptions",
            summary="single turn: spell a text backwards",
        ),
        EnvironmentEntry(
            name="number-guessing",
            target="prl_train.environments.number_guessing:create",
            options="prl_train.environments.number_guessing:NumberGuessingOptions",
            summary="multi-turn: find a number with the tool guess(n)",
        ),
    ]


@hookimpl
def prl_sinks() -> list[SinkEntry]:
    """Offer the metrics file and the terminal."""
    return [
        SinkEntry(
            name="jsonl",
            target="prl_train.run.sinks:create_jsonl",
            options="prl_train.run.sinks:NoOptions",
            summary="metrics.jsonl in the run folder; always on",
        ),
        SinkEntry(
            name="console",
            target="prl_train.run.sinks:create_console",
            options="prl_train.run.sinks:NoOptions",
            summary="a progress bar on a terminal, plain lines elsewhere",
        ),
    ]


@hookimpl
def prl_attention_kernels() -> list[AttentionEntry]:
    """Offer torch's own attention, one document at a time."""
    return [
        AttentionEntry(
            name="sdpa",
            target="prl_train.attention.sdpa:create",
            devices=("cpu", "cuda"),
            dtypes=("float32", "bfloat16", "float16"),
            needs=("torch",),
            install="pip install prl-train",
            features=("window", "softmax_scale", "gqa"),
            summary="torch scaled_dot_product_attention, per document",
        )
    ]


@hookimpl
def prl_commands() -> list[CommandEntry]:
    """Offer the commands that train."""
    run_config = "prl_train.config:RLConfig"
    return [
        CommandEntry(
            name="rl",
            target="prl_train.commands.rl:run",
            config=run_config,
            summary="Train with rewards: engine, orchestrator and trainer in one process",
        ),
        CommandEntry(
            name="sft",
            target="prl_train.commands.sft:run",
            config="prl_train.sft.config:SftConfig",
            summary="Train on conversations",
        ),
        CommandEntry(
            name="orchestrator",
            target="prl_train.commands.orchestrator:run",
            config=run_config,
            summary="Run the rollout side of a run as its own process",
        ),
        CommandEntry(
            name="trainer",
            target="prl_train.commands.trainer:run",
            config=run_config,
            summary="Run the training side of a run as its own process",
        ),
        CommandEntry(name="report", target="prl_train.commands.report:run", summary="Write a run's report.html anew"),
    ]


@hookimpl
def prl_checks() -> list[CheckEntry]:
    """Offer checks of the training side."""
    return [CheckEntry(name="training", target="prl_train.commands.checks:training", summary="torch, devices, threads")]
