"""Images in messages: found in every spelling that clients use, and made part of the message before it is sent.

A message that holds its images ("data:" URLs) means the same to every server and process that reads it later. Files are
read from one allowed folder; addresses are fetched only where that is allowed, once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from prl.types import Message, RenderError

from .http import import_aiohttp

FETCH_SECONDS = 30.0
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"BM": "bmp",
}
_KINDS = {"image_url": "image_url", "image": "image", "input_image": "image_url"}
_VIDEOS = frozenset({"video", "video_url", "input_video"})


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """Where images may come from, besides the message itself. `max_bytes` bounds one image, as a file."""

    directory: Path | None = None
    allow_urls: bool = False
    max_bytes: int = 20_000_000


def has_images(messages: Sequence[Message]) -> bool:
    """Whether any message holds an image."""
    return any(True for _ in _parts(messages))


def image_urls(messages: Sequence[Message]) -> list[str]:
    """Return the images of a conversation in order, as their messages name them."""
    return [_source(part, where) for part, where in _parts(messages)]


async def inline_images(messages: Sequence[Message], policy: ImagePolicy) -> list[Message]:
    """Return the messages with every image as a "data:" URL; the caller's are not touched.

    Raises `RenderError` naming the message and the part for an image that may not be read, or is none.
    """
    if not has_images(messages):
        return list(messages)
    return [await _inlined(message, index, policy) for index, message in enumerate(messages)]


def shortened_images(messages: Sequence[Message]) -> list[Message]:
    """Return messages for people to read: of a "data:" URL, only its kind, length and the sum of its text."""
    return [_shortened(message) for message in messages]


def image_bytes(url: str, *, where: str = "", max_bytes: int | None = None) -> bytes:
    """Return the bytes of a "data:" URL; raise `RenderError` where it holds no image of a known kind."""
    head, comma, body = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise _refused(f"{url[:40]!r} is no data URL of base64", where, 'give "data:image/png;base64,..."')
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refused(f"the data URL is no base64: {error}", where, "encode the image's file as it is") from error
    _checked(data, where, max_bytes)
    return data


def data_url(data: bytes, *, where: str = "") -> str:
    """Return an image's file as a "data:" URL; raise `RenderError` where it is no image of a known kind."""
    return f"data:image/{_checked(data, where, None)};base64,{base64.b64encode(data).decode('ascii')}"


def _parts(messages: Sequence[Message]) -> Iterator[tuple[Mapping[str, Any], str]]:
    for index, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            where = f"message {index}, part {place}"
            kind = _kind(part)
            if kind in _VIDEOS:
                raise _refused("a video cannot be trained on", where, "send its frames as images")
            if kind in _KINDS:
                yield part, where


def _kind(part: Any) -> str:
    """Return a part's type. Parts in templates' own spelling have none and are known by a key; texts may be bare."""
    if not isinstance(part, Mapping):
        return ""
    named = part.get("type")
    return str(named) if named else next((name for name in (*_KINDS, *_VIDEOS) if part.get(name) is not None), "")


def _source(part: Mapping[str, Any], where: str) -> str:
    """Return what an image part names: `{"image_url": {"url": ...}}`, `{"image_url": ...}` or `{"image": ...}`."""
    value = part.get(_KINDS[_kind(part)], part.get("url"))
    if isinstance(value, Mapping):
        value = value.get("url")
    if not isinstance(value, str) or not value:
        raise _refused("an image part names no image", where, 'give {"type": "image_url", "image_url": {"url": ...}}')
    return value


def _shortened(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list) or not any(_kind(part) in _KINDS for part in content):
        return message
    return {**message, "content": [_summary(part) if _kind(part) in _KINDS else part for part in content]}


def _summary(part: Mapping[str, Any]) -> dict[str, Any]:
    url = _source(part, "")
    if not url.startswith("data:"):
        return dict(part)
    digest = hashlib.sha256(url.partition(",")[2].encode()).hexdigest()[:16]
    kind = url.partition(";")[0]
    return {"type": "image_url", "image_url": {"url": f"{kind};characters={len(url)};sha256={digest}"}}


async def _inlined(message: Message, index: int, policy: ImagePolicy) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = []
    for place, part in enumerate(content):
        if _kind(part) not in _KINDS:
            parts.append(part)
            continue
        where = f"message {index}, part {place}"
        parts.append({"type": "image_url", "image_url": {"url": await _data_url(_source(part, where), policy, where)}})
    return {**message, "content": parts}


async def _data_url(source: str, policy: ImagePolicy, where: str) -> str:
    try:
        split = urlsplit(source if ":" in source[:12] else "")
    except ValueError as error:
        raise _refused(f"an image is named by {source[:40]!r}, which is no address", where, "correct it") from error
    scheme = split.scheme
    if scheme == "data":
        await asyncio.to_thread(image_bytes, source, where=where, max_bytes=policy.max_bytes)
        return source
    if scheme in ("http", "https"):
        return await _fetched(source, policy, where)
    path = Path(unquote(split.path)) if scheme == "file" else Path(source)
    return await asyncio.to_thread(_read, path, policy, where)


def _read(path: Path, policy: ImagePolicy, where: str) -> str:
    if policy.directory is None:
        raise _refused("an image is named by a file, and no folder is allowed", where, "set images.directory")
    root = policy.directory.expanduser().resolve()
    try:
        found = (root / path).resolve()  # links are followed first: one that leads out of the folder is no way out
    except (OSError, ValueError, RuntimeError) as error:
        raise _refused(f"the image cannot be read: {error}", where, "correct the path") from error
    if not found.is_relative_to(root):
        raise _refused(f"{str(path)!r} lies outside {root}", where, "move the image there, or set images.directory")
    try:
        if found.stat().st_size > policy.max_bytes:
            raise _too_large(found.stat().st_size, policy.max_bytes, where)
        return data_url(found.read_bytes(), where=f"{where}, {found}")
    except OSError as error:
        raise _refused(f"the image cannot be read: {error}", where, "correct the path") from error


async def _fetched(url: str, policy: ImagePolicy, where: str) -> str:
    if not policy.allow_urls:
        raise _refused(
            "an image is named by a web address, which is not fetched",
            where,
            "set images.allow_urls = true where every address can be trusted, or send the image in the message",
        )
    aiohttp = import_aiohttp()
    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            answer.raise_for_status()
            data = await answer.content.read(policy.max_bytes + 1)
            while len(data) <= policy.max_bytes and (more := await answer.content.read(1 << 16)):
                data += more
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _refused(f"the image cannot be fetched: {type(error).__name__}", where, "check the address") from error
    _checked(data, where, policy.max_bytes)
    return await asyncio.to_thread(data_url, data, where=where)


def _checked(data: bytes, where: str, max_bytes: int | None) -> str:
    """Return the kind of an image by its first bytes."""
    if max_bytes is not None and len(data) > max_bytes:
        raise _too_large(len(data), max_bytes, where)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature):
            return kind
    raise _refused("the bytes are no image of a known kind", where, "give PNG, JPEG, WebP, GIF or BMP")


def _too_large(size: int, limit: int, where: str) -> RenderError:
    return _refused(f"an image has {size} bytes or more, over the limit of {limit}", where, "scale it down")


def _refused(what: str, where: str, next_step: str) -> RenderError:
    return RenderError(what, where=where, next_step=next_step)
