"""What is odd about turns that were trained all the same: counted, and told with what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping

AS_TEMPLATE = "turns_as_template"
WITHOUT_STOP = "turns_without_stop"

NOTES: Mapping[str, tuple[str, str]] = {
    AS_TEMPLATE: (
        "trained as the template writes them, and not behind the prompt that a sampler gets: that prompt opens (or "
        "skips) reasoning, and they begin otherwise",
        "next: make both agree, by `reasoning_content` in every turn, or by a renderer option that prompts as the "
        "turns begin, such as enable_thinking",
    ),
    WITHOUT_STOP: (
        "trained without a stop token: the template writes none after them, so nothing teaches the model to end there",
        'next: if its rollouts run on there, use data.samples = "auto", or a renderer whose format closes every turn',
    ),
}
"""By the name that counts them: what is odd, and what to do."""


def told(counts: Mapping[str, int]) -> list[str]:
    """Return a line for each kind of oddity that was met."""
    return [
        f"{counts[name]} assistant {'turn was' if counts[name] == 1 else 'turns were'} {odd}; {step}"
        for name, (odd, step) in NOTES.items()
        if counts.get(name)
    ]
