"""`prl plugins list --kind attention-kernel` says what can run here, whatever a kernel does on loading."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from prl.plugin import AttentionEntry
from prl.plugin.machine_probe import probe_kernels
from prl.testing.fake_dist import write_fake_dist

Run = Callable[..., subprocess.CompletedProcess[str]]
PLUGIN = """
from prl.plugin import AttentionEntry, hookimpl
@hookimpl
def prl_attention_kernels():
    return [
        AttentionEntry(name="fine", target="acme_kernels:fine"),
        AttentionEntry(name="far", target="acme_kernels:fine", needs=("no_such_module",), install="pip install far"),
        AttentionEntry(name="gpu", target="acme_kernels:fine", devices=("rocm-9",)),
        AttentionEntry(name="refuses", target="acme_kernels:refuses"),
        AttentionEntry(name="breaks", target="acme_kernels:breaks"),
    ]
"""
KERNELS = """
import os, time
from prl.types import ConfigError
def fine(): return lambda q, k, v, **options: q
def refuses(): raise ConfigError("the library is too old", next_step="update it")
def breaks(): raise ValueError("no symbol")
def crashes(): os._exit(7)
def hangs(): time.sleep(600)
"""


@pytest.fixture
def kernels(site: Path) -> Path:
    write_fake_dist(site, "acme", PLUGIN)
    (site / "acme_kernels.py").write_text(KERNELS, encoding="utf-8")
    return site


@pytest.mark.usefixtures("kernels")
def test_each_kernel_says_whether_it_runs_here_and_why_not(prl: Run) -> None:
    """Someone chooses a kernel by its name, and learns in the middle of a run that it needs another GPU."""
    pytest.importorskip("torch")
    done = prl("plugins", "list", "--kind", "attention-kernel", "--json")
    [row] = [row for row in json.loads(done.stdout)["plugins"] if row["distribution"] == "acme"]
    found = {record["name"]: record["here"] for record in row["records"]}
    assert found["gpu"]["why"].startswith("needs rocm-9, and torch finds cpu")
    del found["gpu"]
    assert found == {
        "fine": {"runs": True, "why": ""},
        "far": {"runs": False, "why": "missing module no_such_module: pip install far"},
        "refuses": {"runs": False, "why": "the library is too old"},
        "breaks": {"runs": False, "why": "ValueError: no symbol"},
    }
    shown = prl("plugins", "list", "--kind", "attention-kernel").stdout
    assert "    fine: runs here\n" in shown
    assert "    refuses: cannot run here: the library is too old\n" in shown


def kernel(name: str) -> AttentionEntry:
    return AttentionEntry(name=name, target=f"acme_kernels:{name}")


def test_a_kernel_that_ends_or_hangs_the_process_is_a_row(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One broken library hides all kernels, or the command never returns."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(kernels))
    assert probe_kernels([kernel("fine"), kernel("crashes"), kernel("fine")]) == [
        "",
        "it ended the process with exit code 7",
        "not asked: a kernel before it broke off",
    ]
    assert probe_kernels([kernel("hangs")], limit_s=2) == ["it did not load within 2 s"]
