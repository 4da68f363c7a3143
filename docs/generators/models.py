"""docs/reference/options.md and config.md: the fields of the pydantic models that records name."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from generators.markdown import code, escaped, split_doc, table
from prl.plugin import CommandEntry, PluginRow, Record
from prl.plugin.loader import import_value

_OPTIONS = """# Options

Options belong to the plugin that offers a name. In a run's config they stand in the section beside the name:
`renderer` and `[renderer_options]`, `[engine] kind` and `[engine.options]`, `[[environments]] name` and
`[environments.options]`. In Python a renderer's options are keywords of `prl.create_renderer`. An unknown key is an
error that names the close one.

"""
_CONFIG = """# Configs

One TOML file a run. Every key can be set on the command line as `dotted.key=value`. `prl config show COMMAND -c FILE`
prints the resolved file, `prl config schema COMMAND` its JSON schema.

"""


def options_page(rows: dict[Path, PluginRow]) -> str:
    """Return the options of every name that has a model, by distribution."""
    text = _OPTIONS
    for row in rows.values():
        with_options = [record for record in row.outcome.records if getattr(record, "options", "")]
        if with_options:
            text += f"## {row.plugin.dist}\n\n"
        text += "".join(_named(record) for record in with_options)
    return text


def config_page(rows: dict[Path, PluginRow]) -> str:
    """Return the config of every command that has one; commands that share a model share a section."""
    commands: dict[str, list[str]] = {}
    for row in rows.values():
        for record in row.outcome.records:
            if isinstance(record, CommandEntry) and record.config:
                commands.setdefault(record.config, []).append(f"`prl {record.name}`")
    text = _CONFIG
    for target, names in commands.items():
        model = import_value(target)
        text += f"## {', '.join(names)}\n\n{_prose(model)}\n\n"
        for path, part in _sections(model, ""):
            head = f"### `{path}`\n\n{_prose(part)}\n\n" if path else ""
            text += f"{head}{_fields(part, skip_sections=True)}\n"
    return text


def _named(record: Record) -> str:
    model = import_value(str(getattr(record, "options", "")))
    if not model.model_fields:
        return f"### {record.kind.replace('_', ' ')} `{record.name}`\n\nNo options.\n\n"
    return f"### {record.kind.replace('_', ' ')} `{record.name}`\n\n{_prose(model)}\n\n{_fields(model)}\n"


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a model and the models inside it, each with the header its table has in TOML."""
    yield path, model
    for name, info in model.model_fields.items():
        inner = _model_in(info.annotation)
        if inner is not None:
            inside = f"{path.strip('[]')}.{name}" if path else name
            array = typing.get_origin(info.annotation) in (list, tuple)
            yield from _sections(inner, f"[[{inside}]]" if array else f"[{inside}]")


def _fields(model: type[BaseModel], *, skip_sections: bool = False) -> str:
    meanings = _meanings(model)
    rows = [
        (code(name), code(_type(info)), _default(info), info.description or escaped(meanings.get(name, "")))
        for name, info in model.model_fields.items()
        if not (skip_sections and _model_in(info.annotation))
    ]
    return table(("key", "type", "default", "meaning"), rows) if rows else ""


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return what the docstrings of a model and of those it extends say of the fields."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__doc__ and base is not BaseModel and issubclass(base, BaseModel):
            found |= split_doc(base)[1]
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field that is a section (also in a list, also optional)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [_model_in(argument) for argument in typing.get_args(annotation)]
    return next((one for one in found if one is not None), None)


def _prose(model: type[BaseModel]) -> str:
    return escaped(split_doc(model)[0]) if model.__doc__ else ""


def _type(info: FieldInfo) -> str:
    limits = [_limit(one) for one in info.metadata]
    return " ".join([_type_text(info.annotation), *filter(None, limits)])


def _type_text(annotation: Any) -> str:
    """Return a type as one writes it, with the bounds of `Annotated` behind it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        bounds = [_limit(one) for part in arguments[1:] for one in getattr(part, "metadata", [part])]
        return " ".join([_type_text(arguments[0]), *filter(None, bounds)])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_type_text, arguments))
    if origin is typing.Literal:
        return " | ".join(json.dumps(argument) for argument in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join('...' if one is ... else _type_text(one) for one in arguments)}]"
    if annotation is type(None):
        return "None"
    return str(getattr(annotation, "__name__", annotation))


def _limit(constraint: Any) -> str:
    """Return a bound as one writes it: `>= 1`."""
    for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        if getattr(constraint, name, None) is not None:
            return f"{sign} {getattr(constraint, name):g}"
    return ""


def _default(info: FieldInfo) -> str:
    """Return a default as TOML has it; TOML knows no null, so a key without a value is absent."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    return "absent" if value is None else code(json.dumps(value, default=str))
