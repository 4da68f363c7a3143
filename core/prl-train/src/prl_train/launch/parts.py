"""The parts of a run that its processes share, each found by name through the registry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prl import load_tokenizer
from prl.client.routing import resolve_client_mode
from prl.client.vision import is_vision_language, read_model_config
from prl.contracts import Renderer, Sink
from prl.plugin import create
from prl.plugin.auto import AUTO as AUTO_RENDERER
from prl.tokenizer import Tokenizer
from prl.types import ConfigError, about_key
from prl_train.attention import AUTO
from prl_train.chosen import check_chosen, find_chosen, make_renderer
from prl_train.config import EnvironmentSection, RLConfig
from prl_train.orchestrator import Schedule, WeightedEnvironment
from prl_train.run import RunFolder
from prl_train.transfer.check import check_transfer

from .demonstrations import demonstrators
from .engines import make_pool
from .scratch import make_scratch_model
from .teachers import check_teacher

ALWAYS_ON = "jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What orchestrator and trainer both need."""

    config: RLConfig
    folder: RunFolder
    schedule: Schedule
    model: str
    tokenizer: Tokenizer
    renderer: Renderer


def check_names(config: RLConfig) -> Schedule:
    """Find every name that the configuration chooses and check its options, before anything heavy begins.

    Returns the schedule, whose environments are made here. Raises `PluginError` or `ConfigError`.
    """
    mode = find_chosen("client_mode", client_mode(config), "client_mode")
    check_chosen(mode, config.client_mode_options, "client_mode_options")
    if config.trainer.attention != AUTO:
        find_chosen("attention_kernel", config.trainer.attention, "trainer", "attention")
    loss = find_chosen("loss", config.trainer.loss.name, "trainer", "loss", "name")
    check_chosen(loss, config.trainer.loss.values(), "trainer", "loss")
    check_teacher(config)
    if config.engine.is_embedded:
        record = find_chosen("engine", config.engine.kind, "engine", "kind")
        check_chosen(record, {"model": "", **config.engine.options}, "engine", "options")
    else:
        with about_key("engine"):
            make_pool(config.engine)
    if config.renderer != AUTO_RENDERER:
        record = find_chosen("renderer", config.renderer, "renderer")
        check_chosen(record, config.renderer_options, "renderer_options")
    for name in config.sinks:
        record = find_chosen("sink", name, "sinks")
        check_chosen(record, config.sink_options.get(name, {}), "sink_options", name)
    for name in config.sink_options.keys() - set(config.sinks):
        raise ConfigError(
            f"options are given for the sink {name!r}, which the run does not use",
            where=f"[sink_options.{name}]",
            next_step=f"add {name!r} to `sinks`, or remove its options",
            keys=[("sink_options", name)],
        )
    lora = config.trainer.lora
    if lora is not None and lora.publish == "adapter":
        raise ConfigError(
            "the engines of a run load whole weights, not adapters",
            where='trainer.lora.publish = "adapter"',
            next_step='use "merged" here; "adapter" is for `prl sft`, whose weights nobody samples from meanwhile',
            keys=[("trainer", "lora", "publish")],
        )
    check_transfer(config)
    environments = [_environment(entry, number) for number, entry in enumerate(config.environments)]
    schedule = Schedule(environments, config.run.seed)
    if config.warmup.steps or config.model.scratch is not None:
        demonstrators(schedule)
    return schedule


def _environment(entry: EnvironmentSection, number: int) -> WeightedEnvironment:
    """Check an entry of `[[environments]]` (from 0), and make its environment."""
    record = find_chosen("environment", entry.name, "environments", number, "name")
    section = ("environments", number, "options")
    check_chosen(record, entry.options, *section)
    with about_key(*section):
        return WeightedEnvironment(create("environment", entry.name, **entry.options), entry.weight)


def load_parts(config: RLConfig, folder: RunFolder, schedule: Schedule) -> RunParts:
    """Load what the configuration names; make the model first where it is made from scratch."""
    model = _model(config, folder, schedule)
    with about_key("model"):
        tokenizer = load_tokenizer(model)
    client_mode(config)  # a model of the hub has its config here only now
    name = None if config.model.scratch is not None else model
    renderer = make_renderer(tokenizer, config.renderer, config.renderer_options, model=name)
    return RunParts(
        config=config, folder=folder, schedule=schedule, model=model, tokenizer=tokenizer, renderer=renderer
    )


def client_mode(config: RLConfig) -> str:
    """Return the name of the client mode that the configuration asks for."""
    return resolve_client_mode(
        client_mode=config.client_mode,
        use_renderer=config.use_renderer,
        use_token_client=config.use_token_client,
        teacher_rollout=config.teacher.rollouts is not None,
        is_vlm=takes_images(config),
        renderer_options=config.renderer_options,
    )


def takes_images(config: RLConfig) -> bool:
    """Whether the model is a vision-language model, as far as its config.json is here to tell."""
    path = config.model.path
    return path is not None and is_vision_language(read_model_config(path))


def make_sinks(config: RLConfig) -> dict[str, Sink]:
    """Create the sinks; `jsonl` is always among them."""
    names = dict.fromkeys([ALWAYS_ON, *config.sinks])
    return {name: create("sink", name, **config.sink_options.get(name, {})) for name in names}


def _model(config: RLConfig, folder: RunFolder, schedule: Schedule) -> str:
    scratch = config.model.scratch
    if scratch is None:
        return str(config.model.path)
    with folder.shared():
        if not (folder.model / "config.json").is_file():
            make_scratch_model(config, scratch, schedule, folder.model)
    return str(Path(folder.model).resolve())
