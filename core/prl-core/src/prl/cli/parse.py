"""`prl parse`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from .chosen import choose_tokenizer
from .inputs import read_ids, read_objects, read_options
from .output import print_json


def run(
    ids: str = "-",
    /,
    *,
    tokenizer: str | None = None,
    renderer: str = "auto",
    model: str | None = None,
    tools: str | None = None,
    prompt: str | None = None,
    option: Annotated[list[str] | None, Parameter(name=("--option", "-o"))] = None,
) -> None:
    """Read the token ids of a completion back into an assistant message, printed as JSON.

    Parameters
    ----------
    ids
        A file with token ids (a JSON array, or numbers between blanks), or - for standard input.
    tokenizer
        A directory with tokenizer.json, or a hub id; the model's own where absent.
    renderer
        A renderer's name, or auto.
    model
        A directory or hub id, which is also what auto looks for; the tokenizer's own where absent.
    tools
        A JSON file with tools, which give argument types.
    prompt
        A file with the prompt's token ids, which tell whether reasoning was open.
    option
        A renderer option as key=value; may be given again.
    """
    from prl import create_renderer

    loaded, model_id = choose_tokenizer(tokenizer, model, "parse")
    chosen = create_renderer(loaded, renderer, model=model_id, **read_options(option or []))
    parsed = chosen.parse_response(
        read_ids(ids),
        tools=read_objects(tools, "tools") if tools else None,
        prompt_ids=read_ids(prompt) if prompt else None,
    )
    print_json(
        {
            "message": parsed.to_message(),
            "reasoning_complete": parsed.reasoning_complete,
            "invalid_tool_calls": [asdict(call) for call in parsed.invalid_tool_calls],
        }
    )
