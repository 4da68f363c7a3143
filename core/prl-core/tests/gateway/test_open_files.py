"""The files of open sessions are read as they were written, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from prl.gateway.journal import Journal, Sampled
from prl.types import ConfigError

from .conftest import Served
from .crashes import ASKED, Serve, die, kept, more
from .small import small_renderer


async def test_sessions_of_another_renderer_or_model_stop_the_start(serve: Serve, tmp_path: Path) -> None:
    """Their ids mean something else to it: gone on with, they would be nonsense to the model."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    await first.chat(ASKED)
    await die(first)
    renderer = small_renderer()
    renderer.name = "large"
    with pytest.raises(ConfigError, match="'small', not 'small' and 'large'") as caught:
        await serve(renderer, out=out)
    assert str(kept(out)[0]) == caught.value.where
    assert len(kept(out)) == 1


async def test_a_file_cut_off_anywhere_keeps_its_whole_lines(serve: Serve, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    served: Served = await serve(out=out)
    said = (await served.chat(ASKED, key="client-key:é")).message
    await served.chat(more(said), key="client-key:é")
    [path] = kept(out)
    whole = path.read_bytes()
    assert whole.count(b'"sampled"') == 2
    copy = tmp_path / "copy.jsonl"
    for end in range(len(whole) + 1):
        journal = Journal(copy, model="small", renderer="small")
        (journal.folder / path.name).write_bytes(whole[:end])
        lines = [line for _, lines in journal.read() for line in lines]
        assert sum(isinstance(line, Sampled) for line in lines) == whole[: whole.rfind(b"\n", 0, end) + 1].count(
            b'"sampled"'
        ), end
        assert bool(kept(copy)) is bool(lines), "a file without a turn is left behind, or one with turns removed"


async def test_a_file_of_another_format_stops_the_start(serve: Serve, tmp_path: Path) -> None:
    """Read as if it were ours, its rollouts could be wrong and nobody would see it."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    await first.chat(ASKED)
    await die(first)
    [path] = kept(out)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(ConfigError, match="written in format 2, not 1") as caught:
        await serve(out=out)
    assert "start the gateway once as it ran before" in str(caught.value.next_step)


async def test_what_cannot_be_opened_is_told(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.open" / "mine.jsonl").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"the open session cannot be read: .*Is a directory"):
        await serve(out=tmp_path / "out.jsonl")


@pytest.mark.parametrize("harm", [b"", b"\n", b'{"line":"sampled"}\n', b"garbage\n"])
async def test_a_file_that_cannot_be_read_stops_the_start(serve: Serve, tmp_path: Path, harm: bytes) -> None:
    """Going on without it would lose a rollout and say nothing."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    await first.chat(ASKED)
    await die(first)
    [path] = kept(out)
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(harm + rest)
    with pytest.raises(ConfigError, match="the open session"):
        await serve(out=out)
    path.write_bytes(head + b"\n" + rest + b'{"line":"sampled","num')
    second: Served = await serve(out=out)
    assert len(second.session.turns) == 1, "what was cut off was never answered"
