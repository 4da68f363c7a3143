"""Nemotron's tools: how they are declared in the system turn, and how they are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import is_inside_parameter, read_functions, write_function
from prl.render import dump_json
from prl.types import RenderError, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
_TAIL = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n"
    "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified "
    "format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n- "
    "Required parameters MUST be specified\n- You may provide optional reasoning for your function call in natural "
    "language BEFORE the function call, but NOT after\n- If there is no function call available, answer the question "
    "like normal with your current knowledge and do not tell the user about function calls\n</IMPORTANT>"
)


class NemotronXmlOptions(BaseModel):
    """Options of the `nemotron-xml` tool parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NemotronXmlCodec:
    r"""`<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>\n`.

    Strings stand as they are, mappings and lists as JSON, other scalars as Python writes them.
    """

    open = OPEN
    close = CLOSE

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write calls whose arguments are mappings, each with its line feed."""
        if after_text:
            out.text("\n")
        for call in calls:
            out.control(OPEN)
            write_function(out, call, written)
            out.control(CLOSE)
            out.text("\n")

    def is_inside_value(self, region: str) -> bool:
        """Whether a parameter is still open."""
        return is_inside_parameter(region)

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the functions of a region."""
        return read_functions(region, tools)

    def trim_before(self, space: str) -> str:
        """Remove the line feed before the first call."""
        return space.removesuffix("\n")


def create_nemotron_xml(options: NemotronXmlOptions) -> NemotronXmlCodec:
    """Create the `nemotron-xml` tool parser."""
    return NemotronXmlCodec()


def written(value: Any) -> str:
    """Return a value as the template writes it: containers as JSON, anything else as Python does."""
    return dump_json(value) if isinstance(value, Mapping | list | tuple) else str(value)


def declare_tools(tools: Sequence[ToolSpec]) -> str:
    """Return the text that declares the tools; raise `RenderError` for one that is no mapping."""
    return _HEAD + "".join(_declare(tool, number) for number, tool in enumerate(tools)) + _TAIL


def _declare(tool: Any, number: int) -> str:
    spec = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(spec, Mapping):
        raise RenderError(
            f"tool {number} is no mapping with a `function`",
            where=f"tools[{number}]",
            next_step="give tools as {'type': 'function', 'function': {'name': ..., 'parameters': ...}}",
        )
    parameters = spec.get("parameters")
    known = parameters if isinstance(parameters, Mapping) else {}
    properties = known.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    return "".join(
        (
            f"\n<function>\n<name>{spec.get('name', '')}</name>",
            _description(spec),
            "\n<parameters>",
            *(
                _parameter(name, schema)
                for name, schema in (properties if isinstance(properties, Mapping) else {}).items()
            ),
            _others(known, ("type", "properties", "required")),
            f"\n<required>{dump_json(known['required'])}</required>" if "required" in known else "",
            "\n</parameters>",
            _others(spec, ("type", "name", "description", "parameters")),
            "\n</function>",
        )
    )


def _parameter(name: str, schema: Any) -> str:
    known = schema if isinstance(schema, Mapping) else {}
    return "".join(
        (
            f"\n<parameter>\n<name>{name}</name>",
            f"\n<type>{known['type']}</type>" if "type" in known else "",
            _description(known),
            f"\n<enum>{dump_json(known['enum'])}</enum>" if "enum" in known else "",
            _others(known, ("name", "type", "description", "enum")),
            "\n</parameter>",
        )
    )


def _description(schema: Mapping[str, Any]) -> str:
    return f"\n<description>{str(schema['description']).strip()}</description>" if "description" in schema else ""


def _others(schema: Mapping[str, Any], handled: Collection[str]) -> str:
    """Write the keys that have no place of their own, each in a tag of its name."""
    return "".join(f"\n<{key}>{written(value)}</{key}>" for key, value in schema.items() if key not in handled)
