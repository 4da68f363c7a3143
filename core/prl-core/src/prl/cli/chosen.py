"""The tokenizer, the renderer and the chat template that a command was told to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prl.types import ConfigError

from .inputs import read_options, read_text

if TYPE_CHECKING:
    from prl.contracts import Renderer
    from prl.tokenizer import Tokenizer


@Parameter(name="*")
@dataclass(frozen=True)
class Named:
    """The options by which a command is told what to use."""

    model: Annotated[
        str | None,
        Parameter(
            help="A directory with tokenizer.json, or a hub id; the model id for auto. A run's own where absent."
        ),
    ] = None
    tokenizer: Annotated[
        str | None, Parameter(help="A directory or hub id, where the tokenizer is not the model's own.")
    ] = None
    renderer: Annotated[str, Parameter(help="A renderer's name, or auto.")] = "auto"
    chat_template: Annotated[
        str | None,
        Parameter(help="A file with the chat template that servers render with; the tokenizer's own where absent."),
    ] = None
    option: Annotated[
        list[str] | None,
        Parameter(name=("--option", "-o"), help="A renderer option as key=value; may be given again."),
    ] = None
    template_option: Annotated[
        list[str] | None,
        Parameter(
            name=("--template-option", "-t"), help="A keyword of the chat template as key=value; may be given again."
        ),
    ] = None


UNNAMED = Named()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What renders. `template` is the chat template of servers, None where none is at hand; `told` where it comes from.

    `plain` is the renderer without the options that are our own (what is kept of past reasoning, control tokens in
    content): what it does to history is what a server does. `keywords` are for the template; a family's own options are
    its template's keywords.
    """

    tokenizer: Tokenizer
    renderer: Renderer
    plain: Renderer
    template: str | None
    told: str
    keywords: Mapping[str, Any]


def from_run(source: str) -> dict[str, Any]:
    """Return tokenizer, renderer and its options as a run folder's config names them; empty where it is none."""
    from prl.config.layers import read_toml

    folder = Path(source)
    if not (folder / "run.json").is_file() or not (folder / "config.toml").is_file():
        return {}
    config = read_toml(folder / "config.toml")[0]
    model = config.get("model", {})
    return {
        "tokenizer": model.get("path") or str(folder / "model"),
        "model": model.get("path"),
        "renderer": config.get("renderer", "auto"),
        "options": dict(config.get("renderer_options", {})),
    }


def choose_tokenizer(tokenizer: str | None, model: str | None, command: str) -> tuple[Tokenizer, str | None]:
    """Return the tokenizer, and the model id that `auto` looks for; `model` alone names both."""
    from prl import load_tokenizer

    place = tokenizer or model
    if place is None:
        raise ConfigError(
            "no tokenizer is named",
            where=f"prl {command}",
            next_step="Give --model DIRECTORY_OR_ID, or --tokenizer DIRECTORY_OR_ID.",
        )
    is_id = model is not None and not Path(model).exists()
    return load_tokenizer(place), model if is_id else None


def choose(command: str, source: str, named: Named) -> Chosen:
    """Load the tokenizer, create the renderer, and find the chat template: the given file, else the tokenizer's own.

    Where `source` is a run folder and no tokenizer is named, the run's own tokenizer, renderer and options are used.
    """
    from prl import create_renderer
    from prl.render.options import RendererOptions

    run = {} if named.tokenizer or named.model else from_run(source)
    loaded, model_id = choose_tokenizer(run.get("tokenizer", named.tokenizer), run.get("model", named.model), command)
    name = run["renderer"] if run and named.renderer == "auto" else named.renderer
    options = {**run.get("options", {}), **read_options(named.option or [])}
    template = read_text(named.chat_template) if named.chat_template else loaded.chat_template
    shared = {key: value for key, value in options.items() if key not in RendererOptions.model_fields}
    keywords = {**shared, **read_options(named.template_option or [])}
    told = f"chat template {named.chat_template}" if named.chat_template else "the tokenizer's chat template"
    return Chosen(
        tokenizer=loaded,
        renderer=create_renderer(loaded, name, model=model_id, **options),
        plain=create_renderer(loaded, name, model=model_id, **(shared if template else keywords)),
        template=template,
        told=told,
        keywords=keywords,
    )
