"""The page on attention kernels works: what it writes is installed, passes the kit and is called by the trainer."""

from __future__ import annotations

from pathlib import Path

from fixtures.documents import Reader
from fixtures.environments import ROOT, linked_environment, workspace_distributions

PAGE = ROOT / "docs" / "how-to" / "add-an-attention-kernel.md"


def test_a_kernel_of_ones_own_is_checked_and_called(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    kept = [name for name in workspace_distributions() if name != "prl-renderer-echo"]
    assert Reader(linked_environment(tmp_path / "environment", kept), home).follow(PAGE) == 8
