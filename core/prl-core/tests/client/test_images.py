"""Images in messages: every spelling is found, and nothing is read or fetched that was not allowed."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

import pytest

from prl.client.images import (
    ImagePolicy,
    data_url,
    has_images,
    image_bytes,
    image_urls,
    inline_images,
    shortened_images,
)
from prl.types import RenderError

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def user(*parts: Any) -> Any:
    return {"role": "user", "content": list(parts)}


def part(source: Any) -> Any:
    return {"type": "image_url", "image_url": {"url": source}}


TEXT = {"type": "text", "text": "What is it?"}


@pytest.mark.parametrize(
    "spelling",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": URL},
        {"type": "image", "image": URL},
        {"type": "image", "url": URL},
        {"type": "input_image", "image_url": URL},
        {"image": URL},
        {"image_url": {"url": URL}},
    ],
)
async def test_every_spelling_of_an_image_becomes_the_one_that_servers_take(spelling: Any) -> None:
    messages = [{"role": "system", "content": "Look."}, user(TEXT, spelling)]
    before = copy.deepcopy(messages)
    assert has_images(messages)
    assert image_urls(messages) == [URL]
    assert await inline_images(messages, ImagePolicy()) == [messages[0], user(TEXT, part(URL))]
    assert messages == before, "the environment's own messages are not touched"


async def test_messages_without_images_stay_as_they_are() -> None:
    messages: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}, user(TEXT), user("Hi")]
    assert not has_images(messages)
    assert await inline_images(messages, ImagePolicy()) == messages


async def test_files_are_read_from_the_allowed_folder_only(tmp_path: Path) -> None:
    folder, secret = tmp_path / "images", tmp_path / "secret.png"
    folder.mkdir()
    secret.write_bytes(PNG)
    (folder / "a b.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(secret)
    policy = ImagePolicy(folder)
    for name in ("a b.png", str(folder / "a b.png"), f"file://{folder}/a%20b.png"):
        [message] = await inline_images([user(part(name))], policy)
        assert image_urls([message]) == [URL]
    for name in ("../secret.png", str(secret), "link.png", f"file://{secret}", "/etc/passwd"):
        with pytest.raises(RenderError, match="lies outside") as caught:
            await inline_images([{"role": "user", "content": "x"}, user(TEXT, part(name))], policy)
        assert caught.value.where == "message 1, part 1"
    with pytest.raises(RenderError, match="no folder is allowed"):
        await inline_images([user(part("a b.png"))], ImagePolicy())
    for name in ("absent.png", "a\0b.png"):
        with pytest.raises(RenderError, match="cannot be read"):
            await inline_images([user(part(name))], policy)
    with pytest.raises(RenderError, match="no address"):
        await inline_images([user(part("http://[x/a.png"))], policy)


async def test_web_addresses_are_not_fetched_unless_allowed(fake: Any) -> None:
    address = f"{fake.url}/picture.png"
    with pytest.raises(RenderError, match="not fetched") as caught:
        await inline_images([user(part(address))], ImagePolicy())
    assert "images.allow_urls" in caught.value.next_step
    assert fake.requests == []
    allowed = ImagePolicy(allow_urls=True, max_bytes=1000)
    fake.replies = [(200, PNG), (404, {}), (200, PNG + bytes(1000)), (200, b"<html>")]
    [message] = await inline_images([user(part(address))], allowed)
    assert image_urls([message]) == [URL], "fetched once: later readers find it in the message"
    for wrong in ("cannot be fetched", "over the limit", "no image of a known kind"):
        with pytest.raises(RenderError, match=wrong):
            await inline_images([user(part(address))], allowed)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png,abc", "no data URL of base64"),
        ("data:image/png;base64,@@@", "no base64"),
        ("data:image/png;base64," + base64.b64encode(b"hello").decode(), "no image of a known kind"),
        ("data:image/png;base64,", "no image of a known kind"),
    ],
)
async def test_what_is_no_image_is_told_before_it_is_sent(url: str, message: str) -> None:
    with pytest.raises(RenderError, match=message):
        await inline_images([user(part(url))], ImagePolicy())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"type": "image_url", "image_url": {}}, "names no image"),
        ({"type": "image"}, "names no image"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "video"),
    ],
)
async def test_a_part_that_names_nothing_or_a_video_is_refused_with_its_place(wrong: Any, message: str) -> None:
    with pytest.raises(RenderError, match=message) as caught:
        await inline_images([user(TEXT, wrong)], ImagePolicy())
    assert caught.value.where == "message 0, part 1"


async def test_large_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "big.png").write_bytes(PNG + bytes(100))
    policy = ImagePolicy(tmp_path, max_bytes=64)
    for source in ("big.png", data_url(PNG + bytes(100))):
        with pytest.raises(RenderError, match="over the limit of 64"):
            await inline_images([user(part(source))], policy)


@pytest.mark.parametrize(
    ("head", "kind"),
    [(b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a", "gif"), (b"RIFF\0\0\0\0WEBP", "webp"), (b"BM", "bmp"), (PNG, "png")],
)
def test_an_images_kind_is_told_from_its_bytes(head: bytes, kind: str) -> None:
    url = data_url(head + bytes(8))
    assert url.startswith(f"data:image/{kind};base64,")
    assert image_bytes(url) == head + bytes(8)


def test_a_log_holds_what_tells_images_apart_and_not_their_bytes() -> None:
    plain: Any = {"role": "user", "content": "Hi"}
    named = user(part("https://host/a.png"))
    [shown, *others] = shortened_images([user(TEXT, part(URL)), plain, named])
    assert others == [plain, named]
    [text, image] = shown["content"]  # type: ignore[typeddict-item]
    assert text == TEXT
    assert image["image_url"]["url"].startswith(f"data:image/png;characters={len(URL)};sha256=")
    [other] = shortened_images([user(part(data_url(PNG + b"x")))])
    assert other["content"][0] != image  # type: ignore[typeddict-item, index]
