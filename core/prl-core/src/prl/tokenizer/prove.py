"""Proof by trial: a fast encoder is used only where it gave the reference's ids on every text of this file."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable, Sequence

from .backend import Backend, Encoder

TEXTS = 3_000

_PROSE = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you
were her all she there would their we him been has when who will more no if out so said what up its about into them can
def return self import None True lambda async print(x) {'a': 1} i+=1 == != -> => // <div> </div> &amp; \\n \\t __x__
don't I'LL we've he'D it's ''s O'Neil 3.14 1e-9 0x1F 2024-01-31 12:30 1,000,000 $5 50% a@b.cz https://x.org/?q=1&r=2
"""
_WORDS = tuple(_PROSE.split())
_BREAKS = ("\t", "\r\n", "   \n\n  ", "\u00a0", "\u3000", "\u2028", "\x0b", "\x85")
_SPACES = ("", " ", "  ", "\n", "\n\n", " \n", "\n ", *_BREAKS)
_MARKS = "\u0300\u0301\u0308\u0327\u0338\u0345\u05b0\u064b\u093c\u0e31\u0eba\u1ab0\u20d7\ufe0f\u200d\u200b"
_RANGES = (
    (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0xA0, 0x17F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF),
    (0xE00, 0xEFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3040, 0x30FF), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFB00, 0xFFFD), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF),
)  # fmt: skip


def first_difference(reference: Backend, candidate: Encoder, *, seed: int = 0, count: int = TEXTS) -> str | None:
    """Return the first text (as a report line) on which the candidate's ids differ from the reference's, or None.

    Texts that the reference's normalizer changes are left out: they never reach a fast encoder.
    """
    added = sorted(reference.added_tokens)
    texts = [text for text in fuzz_texts(added, seed=seed, count=count) if reference.is_lossless(text)]
    texts.append("".join(texts[:200]))
    for kind, ours, theirs in (
        ("with added tokens", reference.encode_many, candidate.encode_many),
        ("as plain text", reference.encode_ordinary_many, candidate.encode_ordinary_many),
    ):
        for text, expected, got in zip(texts, ours(texts), theirs(texts), strict=True):
            if expected != got:
                return f"differs {kind} on {text[:60]!r}"
    return None


def fuzz_texts(added: Sequence[str], *, seed: int, count: int) -> list[str]:
    """Write seeded texts that tell tokenizers apart: words, code, odd white space, marks, scripts, control names."""
    rng = random.Random(seed)
    singles: Iterable[str] = (name + tail for name in added for tail in ("", " x", "\n"))
    return [*singles, *(_text(rng, added) for _ in range(count))]


def _text(rng: random.Random, added: Sequence[str]) -> str:
    parts: list[str] = []
    for _ in range(rng.randint(1, 16)):
        draw = rng.random()
        if draw < 0.45:
            parts.append(rng.choice(_WORDS))
        elif draw < 0.6:
            parts.append("".join(chr(rng.randint(*rng.choice(_RANGES))) for _ in range(rng.randint(1, 6))))
        elif draw < 0.68:
            parts.append(rng.choice("aeonAEN><=가あ") + "".join(rng.choices(_MARKS, k=rng.randint(1, 3))))
        elif draw < 0.78 and added:
            name = rng.choice(added)
            parts.append(name if rng.random() < 0.7 else name[: rng.randint(1, len(name))])
        elif draw < 0.88:
            parts.append(rng.choice("-=#*_ .a0\n") * rng.randint(2, 40))
        parts.append(rng.choice(_SPACES))
    text = "".join(parts)
    return text if rng.random() < 0.3 else unicodedata.normalize("NFC", text)
