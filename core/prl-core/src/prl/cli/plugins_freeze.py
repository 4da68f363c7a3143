"""`prl plugins freeze`."""

from __future__ import annotations

from prl.plugin import take_snapshot
from prl.plugin.probe import DEFAULT_LIMIT_S
from prl.plugin.registry import failure

from .loaded import probed_registry
from .output import print_json


def run(*, json: bool = False, timeout: float = DEFAULT_LIMIT_S) -> None:
    """Print the loaded plugins' versions as requirement lines, or with --json the snapshot that a run keeps.

    Parameters
    ----------
    json
        Print the content of a run's plugins.json.
    timeout
        Seconds each plugin may take to load.
    """
    registry = probed_registry(limit_s=timeout)
    for row in registry.plugins():
        if row.failed:  # a frozen list that leaves out what is installed would freeze another installation
            raise failure(row, "a frozen list must be whole")
    snapshot = take_snapshot(registry)
    if json:
        print_json(snapshot.to_dict())
        return
    print(f"# prl plugins, snapshot sha256 {snapshot.digest}")
    lines = {f"{row['distribution']}=={row['version']}" for row in snapshot.plugins}
    print("\n".join(sorted(lines)))
