"""The kit on codecs, environments, client modes and kernels: it passes what is right and catches seeded faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kit import faulty_attention
from kit.faulty_attention import Passes
from kit.sample import JsonCalls
from prl.contracts import CallView, Example, PieceWriter, ReadCall, StepResult
from prl.parse import TaggedReasoning, load_object
from prl.testing.checks import (
    AttentionSubject,
    ClientModeSubject,
    EnvironmentSubject,
    ReasoningCodecSubject,
    ToolCodecSubject,
    Verdict,
    checks_of,
    run_check,
)
from prl.types import GenerateRequest, Message, ParsedResponse, PrlError, SamplingParams, Turn


def verdicts(kind: str, subject: Any) -> dict[str, Verdict]:
    return {one.name: run_check(one, subject).verdict for one in checks_of(kind)}


def failed(kind: str, subject: Any) -> set[str]:
    return {name for name, verdict in verdicts(kind, subject).items() if verdict is Verdict.FAIL}


# ---------------------------------------------------------------------------------------- tool codecs


class NoMarker(JsonCalls):
    open = ""


class TextForNumbers(JsonCalls):
    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        texts = [call._replace(arguments={k: str(v) for k, v in dict(call.arguments).items()}) for call in calls]  # type: ignore[arg-type]
        super().write(out, texts, after_text=after_text)


class LosesEmptyArguments(JsonCalls):
    def read(self, region: str, tools: Any) -> list[ReadCall]:
        return [one if one.arguments else ReadCall(region, error="no arguments") for one in super().read(region, tools)]


class KeepsTheLineFeed(JsonCalls):
    def trim_before(self, space: str) -> str:
        return space


class EatsAllSpace(JsonCalls):
    def trim_before(self, space: str) -> str:
        return ""


class ClosesInStrings(JsonCalls):
    def is_inside_value(self, region: str) -> bool:
        return False

    def read(self, region: str, tools: Any) -> list[ReadCall]:
        return [ReadCall(region, error="x") if "</call>" in region else one for one in super().read(region, tools)]


class RunsHalfCalls(JsonCalls):
    def read(self, region: str, tools: Any) -> list[ReadCall]:
        [one] = super().read(region, tools)
        return [one if one.arguments is not None else ReadCall(region, "get_weather", {})]


class Raises(JsonCalls):
    def read(self, region: str, tools: Any) -> list[ReadCall]:
        call = load_object(region)
        return [ReadCall(region, call["name"], call["arguments"])]


class Forgets(JsonCalls):
    def read(self, region: str, tools: Any) -> list[ReadCall]:
        return [one for one in super().read(region, tools) if one.arguments is not None]


class RemembersTheLastRegion(JsonCalls):
    last = ""

    def read(self, region: str, tools: Any) -> list[ReadCall]:
        before, self.last = self.last, region
        return [one._replace(id=f"after-{len(before)}") for one in super().read(region, tools)]


class TakesTextForCalls(JsonCalls):
    open, close = "x", "<"


CODECS: list[tuple[type[JsonCalls], str]] = [
    (NoMarker, "the_markers_are_texts"),
    (TextForNumbers, "calls_come_back_with_their_types"),
    (LosesEmptyArguments, "empty_arguments_are_a_call"),
    (KeepsTheLineFeed, "the_text_before_calls_is_kept"),
    (EatsAllSpace, "the_text_before_calls_is_kept"),
    (ClosesInStrings, "markers_inside_values_are_values"),
    (RunsHalfCalls, "cut_calls_are_kept_and_not_run"),
    (RunsHalfCalls, "damaged_calls_are_kept_and_not_run"),
    (Raises, "reading_never_raises"),
    (Forgets, "reading_never_raises"),
    (RemembersTheLastRegion, "a_stream_of_calls_ends_in_the_same_message"),
    (TakesTextForCalls, "content_alone_is_no_call"),
]


def test_a_right_codec_passes() -> None:
    assert failed("tool_parser", ToolCodecSubject("json", JsonCalls())) == set()


@pytest.mark.parametrize(("codec", "check"), CODECS)
def test_a_wrong_codec_is_caught(codec: type[JsonCalls], check: str) -> None:
    assert check in failed("tool_parser", ToolCodecSubject("wrong", codec()))


def test_every_codec_check_has_a_fault_that_it_sees() -> None:
    assert {one.name for one in checks_of("tool_parser")} == {check for _, check in CODECS}


# ----------------------------------------------------------------------------------- reasoning codecs

REASONING: list[tuple[dict[str, Any], str]] = [
    ({"close": "<think>"}, "the_markers_differ"),
    ({"strip": "x"}, "the_white_space_is_stripped_again"),
    ({"content_strip": "x"}, "the_white_space_is_stripped_again"),
    ({"after_close": "\n\nAnswer: "}, "reasoning_comes_back"),
    ({"before_close": "\n."}, "empty_reasoning_is_none"),
    ({"open": "It's"}, "an_answer_alone_is_content"),
    ({"close": "w"}, "a_cut_thought_is_reported"),
]


def test_a_right_reasoning_codec_passes() -> None:
    assert failed("reasoning_parser", ReasoningCodecSubject("think", TaggedReasoning())) == set()


@pytest.mark.parametrize(("change", "check"), REASONING, ids=str)
def test_a_wrong_reasoning_codec_is_caught(change: dict[str, Any], check: str) -> None:
    subject = ReasoningCodecSubject("wrong", replace(TaggedReasoning(), **change))
    assert check in failed("reasoning_parser", subject)


# -------------------------------------------------------------------------------------- environments


class Echo:
    """Reward the word of the task; one retry."""

    name = "echo"
    max_turns = 2
    tools: Any = None

    def example(self, index: int) -> Example:
        return Example(
            id=f"echo-{index}", messages=({"role": "user", "content": f"Say {index}."},), data={"word": index}
        )

    def start(self, example: Example) -> Any:
        return EchoEpisode(example)


class EchoEpisode:
    def __init__(self, example: Example) -> None:
        self.example = example
        self.turns = 0

    async def step(self, message: Message, parsed: ParsedResponse | None) -> StepResult:
        self.turns += 1
        if message.get("content") == str(self.example.data["word"]):
            return StepResult(done=True, reward=1.0)
        retry: Message = {"role": "user", "content": "Again."}
        return StepResult(messages=(retry,), done=self.turns >= 2)


class RandomTasks(Echo):
    def example(self, index: int) -> Example:
        return replace(super().example(index), id=str(random.random()))


class TasksOfObjects(Echo):
    def example(self, index: int) -> Example:
        return replace(super().example(index), messages=({"role": "user"},))


class Crashes(Echo):
    def start(self, example: Example) -> Any:
        episode = EchoEpisode(example)

        async def step(message: Message, parsed: ParsedResponse | None) -> StepResult:
            _ = message["tool_calls"][0]  # type: ignore[index]
            return await EchoEpisode.step(episode, message, parsed)

        episode.step = step  # type: ignore[method-assign]
        return episode


class NeverAnswers(Echo):
    def start(self, example: Example) -> Any:
        episode = EchoEpisode(example)

        async def step(message: Message, parsed: ParsedResponse | None) -> StepResult:
            return StepResult()

        episode.step = step  # type: ignore[method-assign]
        return episode


class SharesState(Echo):
    asked = 0

    def start(self, example: Example) -> Any:
        outer = self

        class Episode(EchoEpisode):
            async def step(self, message: Message, parsed: ParsedResponse | None) -> StepResult:
                outer.asked += 1
                return replace(await super().step(message, parsed), reward=float(outer.asked))

        return Episode(example)


ENVIRONMENTS: list[tuple[type[Echo], str]] = [
    (RandomTasks, "an_index_is_always_the_same_task"),
    (TasksOfObjects, "tasks_can_be_rendered"),
    (Crashes, "episodes_end_whatever_is_said"),
    (NeverAnswers, "episodes_end_whatever_is_said"),
    (SharesState, "episodes_do_not_share_state"),
]


def test_a_right_environment_passes() -> None:
    assert set(verdicts("environment", EnvironmentSubject("echo", Echo())).values()) == {Verdict.PASS}


@pytest.mark.parametrize(("environment", "check"), ENVIRONMENTS)
def test_a_wrong_environment_is_caught(environment: type[Echo], check: str) -> None:
    assert check in failed("environment", EnvironmentSubject("wrong", environment()))


# -------------------------------------------------------------------------------------- client modes


class Session:
    """A right session, whose steps the faults change."""

    def __init__(self, engine: Any, renderer: Any, *, cache_salt: Any = None, seed: Any = None, **_: Any) -> None:
        self.engine, self.renderer, self.salt, self.seed = engine, renderer, cache_salt, seed
        self.messages: list[Message] = []
        self.turns = 0

    async def turn(self, new: Any, sampling: SamplingParams) -> Turn:
        messages = [*self.messages, *new]
        prompt = self.renderer.render_ids(messages, add_generation_prompt=True)
        seed = None if self.seed is None else self.seed * 1000 + self.turns
        request = GenerateRequest(
            model="pretend",
            prompt_token_ids=prompt,
            sampling=replace(sampling, stop_token_ids=self.renderer.get_stop_token_ids(), seed=seed),
            cache_salt=self.salt,
        )
        response = await self.engine.generate(request)
        [choice] = response.choices
        message = self.renderer.parse_response(choice.token_ids).to_message()
        self.messages = [*messages, message]
        self.turns += 1
        return Turn(
            prompt_ids=prompt,
            completion_ids=choice.token_ids,
            logprobs=choice.logprobs,
            finish_reason=choice.finish_reason,
            weight_version=response.weight_version,
            message=message,
        )


class FillsWithZeros(Session):
    async def turn(self, new: Any, sampling: SamplingParams) -> Turn:
        turn = await super().turn(new, sampling)
        return replace(turn, logprobs=[0.0] * len(turn.completion_ids))


class EncodesAgain(Session):
    async def turn(self, new: Any, sampling: SamplingParams) -> Turn:
        turn = await super().turn(new, sampling)
        return replace(turn, completion_ids=self.renderer.tokenizer.encode(str(turn.message["content"])))


class ForgetsAnswers(Session):
    async def turn(self, new: Any, sampling: SamplingParams) -> Turn:
        turn = await super().turn(new, sampling)
        self.messages = self.messages[:-1]
        return turn


class AppendsFirst(Session):
    async def turn(self, new: Any, sampling: SamplingParams) -> Turn:
        self.messages = [*self.messages, *new]
        return await super().turn([], sampling)


class SwallowsErrors(Session):
    async def turn(self, new: Any, sampling: SamplingParams) -> Turn:
        try:
            return await super().turn(new, sampling)
        except PrlError:
            return await super().turn(new, sampling)


class ChangesTheCallersList(Session):
    async def turn(self, new: Any, sampling: SamplingParams) -> Turn:
        turn = await super().turn(new, sampling)
        new.append(turn.message)
        return turn


class DropsTheSalt(Session):
    def __init__(self, *arguments: Any, **how: Any) -> None:
        super().__init__(*arguments, **{**how, "cache_salt": None})


class OneSeedForAll(Session):
    async def turn(self, new: Any, sampling: SamplingParams) -> Turn:
        self.turns = 0
        return await super().turn(new, sampling)


MODES: list[tuple[type[Session], str]] = [
    (FillsWithZeros, "a_turn_has_the_exact_ids"),
    (EncodesAgain, "a_turn_has_the_exact_ids"),
    (ForgetsAnswers, "the_conversation_grows_by_whole_turns"),
    (AppendsFirst, "an_error_leaves_the_session_as_it_was"),
    (SwallowsErrors, "an_error_leaves_the_session_as_it_was"),
    (ChangesTheCallersList, "the_callers_messages_are_not_changed"),
    (DropsTheSalt, "the_sessions_salt_reaches_the_engine"),
    (OneSeedForAll, "a_seed_gives_each_turn_its_own"),
]


class Mode:
    name = "sample"

    def __init__(self, session: type[Session], engine: Any, renderer: Any) -> None:
        self.made = (session, engine, renderer)

    def session(self, **how: Any) -> Any:
        session, engine, renderer = self.made
        return session(engine, renderer, **how)


def mode(session: type[Session]) -> ClientModeSubject:
    return ClientModeSubject("sample", lambda engine, renderer: Mode(session, engine, renderer))


def test_a_right_client_mode_passes() -> None:
    assert set(verdicts("client_mode", mode(Session)).values()) == {Verdict.PASS}


@pytest.mark.parametrize(("session", "check"), MODES)
def test_a_wrong_client_mode_is_caught(session: type[Session], check: str) -> None:
    assert check in failed("client_mode", mode(session))


def test_every_check_of_a_client_mode_has_a_fault_that_it_sees() -> None:
    assert {one.name for one in checks_of("client_mode")} == {check for _, check in MODES}


# ----------------------------------------------------------------------------------- attention kernels


def kernel_subject(kernel: Any, features: Sequence[str]) -> AttentionSubject:
    return AttentionSubject("sample", kernel, features=features)


@pytest.mark.parametrize(
    ("kernel", "features"), [(faulty_attention.plain, faulty_attention.CALLABLE), (Passes(), faulty_attention.PASSES)]
)
def test_a_right_kernel_passes(kernel: Any, features: tuple[str, ...]) -> None:
    pytest.importorskip("torch")
    found = verdicts("attention_kernel", kernel_subject(kernel, features))
    without_lse = {Verdict.SKIP} if kernel is faulty_attention.plain else set()
    assert set(found.values()) == {Verdict.PASS} | without_lse


@pytest.mark.parametrize(("kernel", "features", "check"), faulty_attention.FAULTS)
def test_a_wrong_kernel_is_caught(kernel: Any, features: tuple[str, ...], check: str) -> None:
    pytest.importorskip("torch")
    [one] = [one for one in checks_of("attention_kernel") if one.name == check]
    assert run_check(one, kernel_subject(kernel, features)).verdict is Verdict.FAIL


def test_every_check_of_a_kernel_has_a_fault_that_it_sees() -> None:
    assert {one.name for one in checks_of("attention_kernel")} == {check for *_, check in faulty_attention.FAULTS}
