"""What prl-train offers. Light: everything else is imported behind a record's target."""

from __future__ import annotations

from prl.plugin import (
    AttentionEntry,
    CheckEntry,
    CommandEntry,
    EnvironmentEntry,
    ExecutorEntry,
    FilterEntry,
    LossEntry,
    SinkEntry,
    hookimpl,
)


@hookimpl
def prl_environments() -> list[EnvironmentEntry]:
    """Offer the two small environments, and the one that runs agents."""
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
        EnvironmentEntry(
            name="command-agent",
            target="prl_train.environments.command_agent:create",
            options="prl_train.environments.command_agent:CommandAgentOptions",
            summary="any program that speaks the OpenAI API, on tasks from a file",
        ),
    ]


@hookimpl
def prl_executors() -> list[ExecutorEntry]:
    """Offer the orchestrator's own process as the place where rollouts are played."""
    return [
        ExecutorEntry(
            name="local",
            target="prl_train.executor.local:create",
            in_process=True,
            summary="in the orchestrator's own process; the default",
        )
    ]


@hookimpl
def prl_filters() -> list[FilterEntry]:
    """Offer filters by reward, by length and by repetition."""
    return [
        FilterEntry(
            name="difficulty",
            target="prl_train.filters.difficulty:create",
            options="prl_train.filters.difficulty:DifficultyOptions",
            summary="groups that are too easy or too hard; examples that are solved",
        ),
        FilterEntry(
            name="length",
            target="prl_train.filters.length:create",
            options="prl_train.filters.length:LengthOptions",
            summary="rollouts that are too short, too long or truncated",
        ),
        FilterEntry(
            name="repetition",
            target="prl_train.filters.repetition:create",
            options="prl_train.filters.repetition:RepetitionOptions",
            summary="rollouts that say the same over and over",
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
    """Offer torch's own attention."""
    return [
        AttentionEntry(
            name="sdpa",
            target="prl_train.attention.sdpa:create",
            devices=("cpu", "cuda"),
            dtypes=("float32", "bfloat16", "float16"),
            needs=("torch",),
            install="pip install prl-train",
            features=(
                "non_causal",
                "window",
                "softmax_scale",
                "sinks",
                "softcap",
                "gqa",
                "lse",
                "deterministic",
            ),
            priority=20,
            summary="torch scaled_dot_product_attention, per document",
        ),
        AttentionEntry(
            name="flex",
            target="prl_train.attention.flex:create",
            devices=("cpu", "cuda"),
            dtypes=("float32", "bfloat16", "float16"),
            needs=("torch",),
            install="pip install prl-train",
            features=("non_causal", "window", "softmax_scale", "sinks", "softcap", "gqa"),
            forward_only=("cpu",),
            priority=10,
            summary="torch flex_attention, compiled on CUDA; no training on CPU",
        ),
    ]


@hookimpl
def prl_losses() -> list[LossEntry]:
    """Offer the losses of the trainer."""
    sampled, taught = ("inference_logprobs",), ("inference_logprobs", "teacher_logprobs")
    options = "prl_train.algo.options"
    return [
        LossEntry(
            name="grpo",
            target="prl_train.algo.grpo:create",
            options=f"{options}:GrpoOptions",
            streams=sampled,
            summary="importance ratio per token, masked where trainer and engine disagree",
        ),
        LossEntry(
            name="gspo",
            target="prl_train.algo.clipped:create_gspo",
            options=f"{options}:GspoOptions",
            streams=sampled,
            summary="one length-normalised importance ratio per sample, clipped",
        ),
        LossEntry(
            name="ppo-clip",
            target="prl_train.algo.clipped:create_ppo_clip",
            options=f"{options}:PpoClipOptions",
            streams=sampled,
            summary="importance ratio per token, clipped",
        ),
        LossEntry(
            name="cispo",
            target="prl_train.algo.clipped:create_cispo",
            options=f"{options}:CispoOptions",
            streams=sampled,
            summary="capped importance ratio as a constant weight of each token",
        ),
        LossEntry(
            name="policy-gradient",
            target="prl_train.algo.plain:create_policy_gradient",
            options=f"{options}:PolicyGradientOptions",
            summary="REINFORCE on the given advantages, no importance ratio",
        ),
        LossEntry(
            name="distillation",
            target="prl_train.algo.distillation:create",
            options=f"{options}:DistillationOptions",
            streams=taught,
            advantages=False,
            summary="reverse KL to a teacher's log-probabilities; reads no advantages",
        ),
        LossEntry(
            name="cross-entropy",
            target="prl_train.algo.plain:create_cross_entropy",
            options=f"{options}:CrossEntropyOptions",
            advantages=False,
            summary="supervised: negative log-probability of the targets",
        ),
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
