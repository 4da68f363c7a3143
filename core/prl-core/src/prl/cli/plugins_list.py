"""`prl plugins list`."""

from __future__ import annotations

from collections.abc import Mapping

from prl import __version__
from prl.plugin import AttentionEntry, PluginRow, Registry, Status, take_snapshot
from prl.plugin.kinds import kind_name
from prl.plugin.machine_probe import probe_kernels
from prl.plugin.probe import DEFAULT_LIMIT_S
from prl.plugin.registry import failure

from .loaded import probed_registry
from .output import paint, print_json, print_table

Here = Mapping[tuple[str, str], str]
"""Plugin and kernel -> why it cannot run on this machine."""

_STYLES = {
    Status.LOADED: "32",
    Status.FOUND: "36",
    Status.DISABLED: "2",
    Status.INCOMPATIBLE: "33",
    Status.CONFLICT: "33",
    Status.ERROR: "31",
}


def run(*, json: bool = False, kind: str | None = None, no_load: bool = False, timeout: float = DEFAULT_LIMIT_S) -> int:
    """List every installed plugin: version, origin, status, what it offers, and its load error.

    Parameters
    ----------
    json
        Print JSON.
    kind
        Show only names of one kind, such as renderer. Plugins that did not load stay in the list. With
        attention-kernel, a child process also says which can run on this machine and, if not, why.
    no_load
        Show metadata alone; load nothing.
    timeout
        Seconds each plugin may take to load.
    """
    wanted = kind_name(kind) if kind else None
    registry = probed_registry(load=not no_load, limit_s=timeout)
    rows = [row for row in registry.plugins() if _shown(row, wanted)]
    here = _can_run(rows) if wanted == AttentionEntry.kind else {}
    if json:
        print_json(_as_json(registry, rows, wanted, here))
    else:
        _print_rows(rows, wanted, here)
    for row in registry.plugins():
        if row.failed and registry.settings.strict:
            raise failure(row, "plugins are strict")
    return 0


def _shown(row: PluginRow, kind: str | None) -> bool:
    return kind is None or kind in row.offers or not row.outcome.records


def _can_run(rows: list[PluginRow]) -> Here:
    """Return why each attention kernel cannot run on this machine, "" where it can."""
    offered = [
        (row.name, record) for row in rows for record in row.outcome.records if isinstance(record, AttentionEntry)
    ]
    reasons = probe_kernels([record for _, record in offered]) if offered else []
    return {(plugin, record.name): reason for (plugin, record), reason in zip(offered, reasons, strict=True)}


def _as_json(registry: Registry, rows: list[PluginRow], kind: str | None, here: Here) -> dict[str, object]:
    listed = []
    for row in rows:
        data = row.to_dict()
        if kind:
            data["offers"] = {key: names for key, names in data["offers"].items() if key == kind}
            data["records"] = [record for record in data["records"] if record["kind"] == kind]
        for record in data["records"]:
            reason = here.get((row.name, record["name"]))
            if reason is not None:
                record["here"] = {"runs": not reason, "why": reason}
        listed.append(data)
    conflicts = [
        {"kind": one.kind, "name": one.name, "plugins": [plugin.name for plugin in one.plugins]}
        for one in registry.conflicts()
        if kind in (None, one.kind)
    ]
    return {
        "prl_core": __version__,
        "snapshot": take_snapshot(registry).digest,
        "plugins": listed,
        "conflicts": conflicts,
    }


def _print_rows(rows: list[PluginRow], kind: str | None, here: Here) -> None:
    print_table(
        ("PLUGIN", "VERSION", "STATUS", "ORIGIN"),
        [(row.name, row.plugin.version, row.status.value, row.plugin.origin) for row in rows],
    )
    for row in rows:
        offers = {key: names for key, names in row.offers.items() if kind in (None, key)}
        if not offers and not row.outcome.error:
            continue
        print(f"\n{row.name}: {paint(row.status.value, _STYLES[row.status])}")
        for key, names in offers.items():
            print(f"  {key}: {', '.join(names)}")
        for name in sorted(name for plugin, name in here if plugin == row.name):
            reason = here[row.name, name]
            print(f"    {name}: {f'cannot run here: {reason}' if reason else 'runs here'}")
        for label, text in (
            ("error", row.outcome.error),
            ("where", row.outcome.where if row.outcome.error else ""),
            ("next", row.outcome.next_step if row.outcome.error else ""),
        ):
            if text:
                print(f"  {label}: {text}")
