"""The environments judge turns as their descriptions say."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from prl.contracts import Demonstrator, Environment
from prl.types import InvalidToolCall, Message, ParsedResponse
from prl_train.environments import number_guessing, reverse_text


def guess(n: object, name: str = "guess") -> Message:
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": {"n": n}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}  # type: ignore[list-item]


def game(secret: int, turns: int = 2) -> number_guessing.NumberGuessingEpisode:
    return number_guessing.NumberGuessingEpisode(secret, turns)


def test_environments_obey_the_contract() -> None:
    for environment in (
        number_guessing.create(number_guessing.NumberGuessingOptions()),
        reverse_text.create(reverse_text.ReverseTextOptions()),
    ):
        assert isinstance(environment, Environment)
        assert isinstance(environment, Demonstrator)
        assert environment.example(5) == environment.example(5)


async def test_guessing_answers_higher_then_rewards_the_hit() -> None:
    episode = game(secret=3)
    first = await episode.step(guess(2), None)
    assert (first.done, first.reward) == (False, 0.0)
    assert first.messages == ({"role": "tool", "content": "higher", "name": "guess", "tool_call_id": "call_0"},)
    second = await episode.step(guess(3), None)
    assert (second.done, second.reward) == (True, 1.0)


async def test_guessing_ends_without_reward_when_the_guesses_are_used_up() -> None:
    episode = game(secret=1, turns=2)
    assert (await episode.step(guess(3), None)).messages[0]["content"] == "lower"
    last = await episode.step(guess(2), None)
    assert (last.done, last.reward) == (True, 0.0)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "2"},
        guess("2"),
        guess(True),
        guess(2, name="gues"),
        {"role": "assistant", "content": "", "tool_calls": guess(1)["tool_calls"] * 2},  # type: ignore[operator]
    ],
)
async def test_a_turn_without_one_valid_call_ends_the_game(message: Message) -> None:
    result = await game(secret=2).step(message, None)
    assert (result.done, result.reward, result.metrics) == (True, 0.0, {"malformed": 1.0})


async def test_a_malformed_call_beside_a_good_one_is_not_overlooked() -> None:
    parsed = ParsedResponse(content="", invalid_tool_calls=(InvalidToolCall("<tool_call>{", "cut"),))
    assert (await game(secret=2).step(guess(2), parsed)).reward == 0.0


async def test_arguments_may_be_the_json_string_of_the_wire_form() -> None:
    message: Message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "guess", "arguments": '{"n": 2}'}}],
    }
    assert (await game(secret=2).step(message, None)).reward == 1.0


def test_a_batch_of_guessing_holds_every_secret() -> None:
    environment = number_guessing.create(number_guessing.NumberGuessingOptions(low=4, high=6))
    assert [environment.example(index).data["secret"] for index in range(6)] == [4, 5, 6, 4, 5, 6]


def test_bisecting_players_always_win_and_uniform_ones_do_not() -> None:
    def wins(player: str) -> int:
        options = number_guessing.NumberGuessingOptions(players={player: 1.0})
        environment = number_guessing.create(options)
        games = [environment.demonstration(index) for index in range(300)]
        return sum(not _lost(messages) for messages in games)

    assert wins("bisecting") == 300
    assert 120 < wins("uniform") < 210


def _lost(messages: list[Message]) -> bool:
    """Whether no secret agrees with the answers and the last guess."""
    guesses = [m["tool_calls"][0]["function"]["arguments"]["n"] for m in messages if m.get("tool_calls")]  # type: ignore
    answers = [m["content"] for m in messages if m["role"] == "tool"]
    return not any(
        guesses[-1] == secret
        and all(number_guessing.judge(secret, n) == said for n, said in zip(guesses, answers, strict=False))
        for secret in (1, 2, 3)
    )


def test_demonstrations_end_with_the_players_turn() -> None:
    environment = number_guessing.create(number_guessing.NumberGuessingOptions())
    assert all(environment.demonstration(index)[-1]["role"] == "assistant" for index in range(50))


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValidationError, match="greater than"):
        number_guessing.NumberGuessingOptions(low=3, high=3)
    with pytest.raises(ValidationError, match="unknown players"):
        number_guessing.NumberGuessingOptions(players={"genius": 1.0})


async def test_reversed_text_earns_one_and_a_wrong_one_less() -> None:
    environment = reverse_text.create(reverse_text.ReverseTextOptions(words=1))
    example = environment.example(0)
    text = str(example.messages[0]["content"]).removeprefix("Reverse this text: ")
    right: Message = {"role": "assistant", "content": f" {text[::-1]}\n"}
    result = await environment.start(example).step(right, None)
    assert (result.done, result.reward, result.metrics) == (True, 1.0, {"exact": 1.0})
    wrong = await environment.start(example).step({"role": "assistant", "content": ""}, None)
    assert (wrong.reward, wrong.metrics) == (0.0, {"exact": 0.0})


def test_similarity_counts_what_is_in_order() -> None:
    assert reverse_text.similarity("abcd", "abcd") == 1.0
    assert reverse_text.similarity("abxx", "abcd") == 0.5
