"""Audit one trajectory: what each client mode would have made of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prl.trajectory import RecordedTrajectory
from prl.types import ConfigError, Turn

from .breaks import Decode, Joined, join_turns
from .ideal import ideal_tokens, recorded_ideal
from .modes import MODES, Sides, as_turn
from .steps import Step, canonical, make_steps, text_of

RECORDED = "recorded"
"""The row for the prompts as they were recorded: nothing in it is simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """One trajectory's figures. `modes` has one entry per client mode, and `recorded` where all ids are known.

    `known` counts the turns whose sampled ids were recorded; the others are simulated. `ideal` is the tokens of one
    sample that holds every message once. `notes` are worth a look.
    """

    name: str
    where: str
    turns: int
    known: int
    ideal: int
    modes: Mapping[str, Joined]
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> str:
        """Where the completions' ids come from: "known", "simulated" or "partly known"."""
        if self.known == self.turns:
            return "known"
        return "partly known" if self.known else "simulated"


def audit(
    record: RecordedTrajectory, sides: Sides, decode: Decode, *, modes: Collection[str] = tuple(MODES)
) -> Audited:
    """Return a trajectory's figures; raise a `PrlError` where it has no turns or cannot be rendered."""
    steps = make_steps(record, sides.renderer, sides.server)
    recorded = _recorded_turns(record, steps, sides)
    if not steps and not recorded:
        raise ConfigError(
            "the line has neither messages nor turns with prompt_ids and completion_ids",
            where="the line",
            next_step="Write the messages, or both kinds of ids for every turn.",
        )
    prompts = {mode: MODES[mode](steps, sides, record.tools) for mode in modes} if steps else {}
    known = [step.is_known for step in steps] or [True] * len(recorded)
    joined = {
        mode: join_turns(record.name, [as_turn(*pair) for pair in zip(steps, found, strict=True)], known, decode)
        for mode, found in prompts.items()
    }
    if recorded:
        joined[RECORDED] = join_turns(record.name, recorded, known, decode)
    return Audited(
        name=record.name,
        where=record.where,
        turns=len(known),
        known=sum(known),
        ideal=_ideal(steps, recorded, prompts, sides, record),
        modes=joined,
        notes=tuple(_notes(record, steps, sides)),
    )


def _recorded_turns(record: RecordedTrajectory, steps: Sequence[Step], sides: Sides) -> list[Turn]:
    """Return the turns as they were recorded, if every one has both kinds of ids."""
    turns = []
    for number, turn in enumerate(record.turns):
        if turn.prompt_ids is None or turn.completion_ids is None:
            return []
        if steps:
            turns.append(as_turn(steps[number], turn.prompt_ids))
            continue
        parsed = sides.renderer.parse_response(turn.completion_ids, prompt_ids=turn.prompt_ids)
        turns.append(
            Turn(
                prompt_ids=turn.prompt_ids,
                completion_ids=turn.completion_ids,
                logprobs=None,
                finish_reason=turn.finish_reason or "stop",
                weight_version=0,
                message=turn.message or parsed.to_message(),
                parsed=parsed,
            )
        )
    return turns


def _ideal(
    steps: Sequence[Step],
    recorded: Sequence[Turn],
    prompts: Mapping[str, list[list[int]]],
    sides: Sides,
    record: RecordedTrajectory,
) -> int:
    if not steps:
        return recorded_ideal(recorded)
    own = prompts.get("renderer") or MODES["renderer"](steps, sides, record.tools)
    return ideal_tokens(steps, own, sides.renderer, record.tools)


def _notes(record: RecordedTrajectory, steps: Sequence[Step], sides: Sides) -> Iterator[str]:
    """Say where what was recorded does not fit together: the figures then speak of something else than it."""
    if not steps:
        yield "the messages of each turn are not known, which the client modes need"
        return
    known = record.turns[0].prompt_ids if record.turns else None
    if known is not None:
        history = steps[0].history
        server = sides.server.ids(history, record.tools, generate=True)
        own = sides.renderer.render_ids(history, tools=record.tools, add_generation_prompt=True)
        for who, ids in (("the server's template", server), (f"renderer {sides.renderer.name}", own)):
            if ids != known:
                pairs = enumerate(zip(ids, known, strict=False))
                place = next((n for n, pair in pairs if pair[0] != pair[1]), min(len(ids), len(known)))
                yield f"the recorded prompt of turn 0 differs from {who} at token {place}"
    for number, step in enumerate(steps):
        if step.is_known and not _says(step):
            yield f"the recorded answer is not what its ids say, at turn {number}"


def _says(step: Step) -> bool:
    """Whether the answer's message has the text and the calls that its ids parse to, white space aside."""
    parsed = step.parsed.to_message()
    kept = [canonical({**one, "role": "assistant", "content": None}) for one in (parsed, step.message)]
    texts = ["".join(text_of(one).split()) for one in (parsed, step.message)]
    return kept[0] == kept[1] and texts[0] == texts[1]
