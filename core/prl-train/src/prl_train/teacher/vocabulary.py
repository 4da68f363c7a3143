"""Whether a teacher's engine has our vocabulary: asked before the first sample is scored."""

from __future__ import annotations

from prl.contracts import EngineClient, TokenChatClient
from prl.tokenizer import Tokenizer
from prl.types import ConfigError, EngineError, EngineUnavailableError, GenerateRequest, SamplingParams

PROBE = "Numbers 0123, naïve Größe, 日本語, emoji 🙂, code: x += [1]; done"
"""A text that vocabularies of different families cut differently."""


async def check_vocabulary(engine: EngineClient, model: str, tokenizer: Tokenizer) -> str:
    """Raise `ConfigError` where the engine's ids are not ours; return how far that was proven.

    "ids": the engine tokenizes a probe as we do. "size": it has no route for that; it knows our highest id, at least.
    """
    ids = await _engine_ids(engine, model)
    if ids is not None:
        text = tokenizer.decode(ids)
        if PROBE not in text or tokenizer.encode(text) != ids:
            raise _differs(f"the teacher's ids of a probe text read {text[:80]!r} in our vocabulary", model)
        return "ids"
    highest = tokenizer.vocab_size - 1
    request = GenerateRequest(model=model, prompt_token_ids=[highest], sampling=SamplingParams(max_tokens=1))
    try:
        await engine.generate(request)
    except EngineUnavailableError:
        raise
    except EngineError as error:
        raise _differs(f"the teacher refuses our highest id, {highest}: {error.what}", model) from error
    return "size"


async def _engine_ids(engine: EngineClient, model: str) -> list[int] | None:
    """Return how the engine tokenizes the probe: as a text, else in a conversation; None where it has no such route."""
    if not isinstance(engine, TokenChatClient):
        return None
    bodies = (
        {"model": model, "prompt": PROBE, "add_special_tokens": False},
        {"model": model, "messages": [{"role": "user", "content": PROBE}]},
    )
    for body in bodies:
        try:
            return await engine.tokenize(body)
        except EngineUnavailableError:
            raise
        except EngineError:
            continue  # the body or the whole route is not known there
    return None


def _differs(what: str, model: str) -> ConfigError:
    return ConfigError(
        f"{what}: log-probabilities of ids need one vocabulary",
        where=f"[teacher.logprobs], model {model!r}",
        next_step="serve a teacher of the student's family, or learn from what it says with [teacher.rollouts]",
    )
