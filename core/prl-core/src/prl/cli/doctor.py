"""`prl doctor`: core's own checks, then those that plugins offer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import metadata

from prl import __version__
from prl.plugin import CheckEntry, PluginRow, Registry, Status, load_target
from prl.plugin.discovery import CORE_PLUGIN
from prl.plugin.probe import DEFAULT_LIMIT_S

from .loaded import probed_registry
from .output import paint, print_json

Finding = tuple[str, str, str]
_STYLES = {"ok": "32", "warn": "33", "fail": "31"}


def run(*, json: bool = False, timeout: float = DEFAULT_LIMIT_S) -> int:
    """Check the installation; exit with 1 where a check fails.

    Parameters
    ----------
    json
        Print JSON.
    timeout
        Seconds each plugin may take to load.
    """
    registry = probed_registry(limit_s=timeout)
    findings = [*_core_checks(), *_plugin_rows(registry), *_offered_checks(registry)]
    if json:
        print_json([{"check": check, "status": status, "text": text} for check, status, text in findings])
    else:
        for check, status, text in findings:
            print(f"{paint(f'{status:<4}', _STYLES[status])}  {check}: {text}")
    return 1 if any(status == "fail" for _, status, _ in findings) else 0


def _core_checks() -> Iterator[Finding]:
    yield "python", "ok", f"{sys.version.split()[0]} at {sys.executable}"
    try:
        installed = metadata.version(CORE_PLUGIN)
    except metadata.PackageNotFoundError:
        yield CORE_PLUGIN, "warn", f"{__version__} runs from a source tree that is not installed; run: pip install -e ."
        return
    if installed != __version__:
        text = (
            f"metadata say {installed}, the code says {__version__}; run: pip install --force-reinstall {CORE_PLUGIN}"
        )
        yield CORE_PLUGIN, "fail", text
    else:
        yield CORE_PLUGIN, "ok", __version__


def _plugin_rows(registry: Registry) -> Iterator[Finding]:
    for row in registry.plugins():
        yield f"plugin {row.name}", _grade(row), _told(row)


def _grade(row: PluginRow) -> str:
    return "fail" if row.failed else "ok"


def _told(row: PluginRow) -> str:
    if row.status is Status.LOADED:
        count = sum(map(len, row.offers.values()))
        return f"{row.plugin.version} loaded, offers {count} name{'' if count == 1 else 's'}"
    return f"{row.plugin.version} {row.status}: {row.outcome.error} {row.outcome.next_step}".rstrip()


def _offered_checks(registry: Registry) -> Iterator[Finding]:
    for entry in registry.all(CheckEntry):
        yield from _run_check(entry)


def _run_check(entry: CheckEntry) -> list[Finding]:
    try:
        results: Iterable[tuple[str, str]] = load_target(entry)()
        findings = [(entry.name, status, text) for status, text in results]
    except KeyboardInterrupt:
        raise
    except BaseException as cause:  # noqa: BLE001 - the loader's rule: a plugin's fault is told and stays its own
        return [(entry.name, "fail", f"the check itself failed: {type(cause).__name__}: {cause}")]
    wrong = sorted({status for _, status, _ in findings} - _STYLES.keys())
    if wrong:
        return [
            (entry.name, "fail", f"the check returned status {', '.join(map(repr, wrong))}; ok, warn or fail are known")
        ]
    return findings or [(entry.name, "warn", "the check returned nothing")]
