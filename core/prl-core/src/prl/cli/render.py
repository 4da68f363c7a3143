"""`prl render`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from .chosen import choose_tokenizer
from .inputs import read_objects, read_options
from .output import paint, print_json

if TYPE_CHECKING:
    from prl.tokenizer import Tokenizer
    from prl.types import RenderedTokens

_STYLES = {0: "2", 1: "36", 2: "1;32", 3: "32"}  # by kind: scaffold, content, sampled, content that is sampled


def run(
    messages: str = "-",
    /,
    *,
    tokenizer: str | None = None,
    renderer: str = "auto",
    model: str | None = None,
    tools: str | None = None,
    generation_prompt: bool = False,
    format: Literal["ids", "pieces", "json"] = "ids",
    option: Annotated[list[str] | None, Parameter(name=("--option", "-o"))] = None,
) -> None:
    """Render a conversation to token ids.

    Parameters
    ----------
    messages
        A JSON file with messages (or an object with "messages" and "tools"), or - for standard input.
    tokenizer
        A directory with tokenizer.json, or a hub id; the model's own where absent.
    renderer
        A renderer's name, or auto.
    model
        A directory or hub id, which is also what auto looks for; the tokenizer's own where absent.
    tools
        A JSON file with tools.
    generation_prompt
        Add the prompt for the next assistant turn.
    format
        ids, pieces (one line a span, with owner and kind), or json.
    option
        A renderer option as key=value; may be given again.
    """
    from prl import create_renderer

    loaded, model_id = choose_tokenizer(tokenizer, model, "render")
    chosen = create_renderer(loaded, renderer, model=model_id, **read_options(option or []))
    rendered = chosen.render(
        read_objects(messages, "messages"),
        tools=read_objects(tools, "tools") if tools else None,
        add_generation_prompt=generation_prompt,
    )
    _FORMATS[format](rendered, loaded)


def _print_ids(rendered: RenderedTokens, _: Tokenizer) -> None:
    print(" ".join(map(str, rendered.token_ids)))


def _print_pieces(rendered: RenderedTokens, tokenizer: Tokenizer) -> None:
    if rendered.spans is None:
        print(f"(ownership not proven)\t{tokenizer.decode(rendered.token_ids)!r}")
        return
    for start, end, message, kind in rendered.spans:
        owner = f"{message}:{rendered.roles[message]}" if 0 <= message < len(rendered.roles) else "-"
        text = paint(repr(tokenizer.decode(rendered.token_ids[start:end]))[1:-1], _STYLES[int(kind)])
        print(f"{start}-{end}\t{owner}\t{kind.name or 'CONTENT|SAMPLED'}\t{text}")


def _print_json(rendered: RenderedTokens, tokenizer: Tokenizer) -> None:
    spans = rendered.spans
    print_json(
        {
            "token_ids": rendered.token_ids,
            "text": tokenizer.decode(rendered.token_ids),
            "spans": None
            if spans is None
            else [[start, end, message, int(kind)] for start, end, message, kind in spans],
            "roles": list(rendered.roles),
        }
    )


_FORMATS = {"ids": _print_ids, "pieces": _print_pieces, "json": _print_json}
