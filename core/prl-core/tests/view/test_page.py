"""The HTML page: whole, alone, safe from what models and users write, and readable without colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from fixtures.plugin import real_tokenizer

from prl import create_renderer
from prl.trajectory import read_trajectory
from prl.view import RolloutView, view_trajectory
from prl.view.page import PAGE_END, page_head, rollout_html

HOSTILE = "</span></div><script>alert(1)</script><img src=x onerror='y'>\"&amp;"
VOID = {"meta", "br", "img", "link"}


class Checker(HTMLParser):
    """Keeps every element with its attributes and text; fails where tags do not nest."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(**fields: Any) -> RolloutView:
    tokenizer = real_tokenizer("qwen3")
    renderer = create_renderer(tokenizer, "qwen3-instruct-2507")
    prompt = renderer.render_ids([{"role": "user", "content": HOSTILE}], add_generation_prompt=True)
    completion = tokenizer.encode(f"{HOSTILE}<|im_end|>")
    turn = {"prompt_ids": prompt, "completion_ids": completion, "logprobs": [-4.5, *[-0.01] * (len(completion) - 1)]}
    data = {
        "id": HOSTILE,
        "note": HOSTILE,
        "messages": [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}],
        "turns": [turn],
        **fields,
    }
    record = read_trajectory(data, where=HOSTILE, number=1)
    return view_trajectory(record, tokenizer, renderer)


def page(view: RolloutView) -> str:
    return page_head("prl <view>") + "".join(rollout_html(view)) + PAGE_END


def parsed(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_hostile_text_stays_text() -> None:
    """A model that writes a script element must not run it in the browser of whoever looks."""
    found = parsed(page(shown()))
    tags = {tag for tag, _ in found.seen}
    assert not tags & {"script", "img", "iframe", "object", "link"}
    assert not [name for _, attributes in found.seen for name in attributes if name.startswith("on")]
    assert HOSTILE in "".join(found.texts)


def test_the_page_fetches_nothing() -> None:
    text = page(shown())
    assert not re.search(r"(src|href|action)\s*=\s*[\"']|@import|url\(|https?://", text.partition("<body>")[0])
    assert "default-src 'none'" in text
    found = parsed(text)
    assert not [1 for _, attributes in found.seen if {"src", "href"} & attributes.keys()]


def tokens(found: Checker) -> list[dict[str, str | None]]:
    spans = [attributes for tag, attributes in found.seen if tag == "span"]
    return [one for one in spans if "title" in one]


def test_masks_on_the_page_are_those_of_the_data() -> None:
    view = shown()
    expected = view.samples[0].tokens
    found = tokens(parsed(page(view)))
    assert len(found) == len(expected)
    for one, token in zip(found, expected, strict=True):
        classes = (one["class"] or "").split()
        assert ("s" in classes, "l" in classes, "c" in classes) == (token.sampled, token.loss, bool(token.content))
        assert (one["title"] or "").startswith(f"token {token.position}, id {token.token_id}, owner ")


def test_every_colour_is_told_in_words() -> None:
    """Who cannot tell the colours apart reads the same from the title, the line below, and the number."""
    text = page(shown())
    found = tokens(parsed(text))
    surprising = [one["title"] or "" for one in found if "q3" in (one["class"] or "")]
    assert len(surprising) == 1
    assert surprising[0].endswith("sampled, content, in the loss, log-probability -4.5000")
    assert "<sub>-4.5</sub>" in text
    assert all("log-probability" in (one["title"] or "") for one in found if "s" in (one["class"] or "").split())
    assert "not sampled, content, not in the loss" in text


def test_sampled_tokens_outside_the_loss_look_different() -> None:
    sample = {"prompt_ids": [9707], "completion_ids": [9707, 9707], "mask": [0, 1], "spans": [[0, 1, 0], [1, 3, 1]]}
    found = tokens(parsed(page(shown(turns=None, samples=[sample]))))
    assert [one["class"] for one in found] == ["t u", "t s", "t s l"]
    assert "sampled, content: not known, not in the loss" in (found[1]["title"] or "")
