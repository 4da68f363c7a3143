"""MiniMax's tool-call format: `<invoke>` and `<parameter>` tags between two control tokens, all calls in one region."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import TaggedCalls
from prl.render import dump_json
from prl.types import ToolSpec

_TAGS = TaggedCalls(
    function=('<invoke name="', '">'),
    parameter=('<parameter name="', '">'),
    function_end="</invoke>",
    parameter_end="</parameter>",
)


class MiniMaxToolOptions(BaseModel):
    """Options of the `minimax-m2` tool parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MiniMaxCodec:
    """All calls of a turn in one region; strings stand as they are, other values as JSON."""

    open = "<minimax:tool_call>"
    close = "</minimax:tool_call>"

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write calls whose arguments are mappings."""
        if not calls:
            return
        out.text("\n")
        out.control(self.open)
        out.text("\n")
        for call in calls:
            assert not isinstance(call.arguments, str), "the format decodes JSON strings before it writes calls"
            out.text('<invoke name="')
            out.value(call.name)
            out.text('">\n')
            for key, value in call.arguments.items():
                out.text('<parameter name="')
                out.value(str(key))
                out.text('">')
                out.value(value if isinstance(value, str) else dump_json(value))
                out.text("</parameter>\n")
            out.text("</invoke>\n")
        out.control(self.close)

    def is_inside_value(self, region: str) -> bool:
        """Whether a parameter is still open."""
        return _TAGS.is_inside_parameter(region)

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the calls of a region."""
        return _TAGS.read(region, tools)

    def trim_before(self, space: str) -> str:
        """Remove the line feed before the region."""
        return space.removesuffix("\n")


def create_minimax(options: MiniMaxToolOptions) -> MiniMaxCodec:
    """Create the `minimax-m2` tool parser."""
    return MiniMaxCodec()
