"""The child of `probe`: load plugins one by one and report each as one line of JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from .discovery import FoundPlugin
from .loader import load_plugin
from .probe import outcome_to_dict


def main(request: dict[str, Any]) -> None:
    """Report `ready`, then one outcome a plugin; leave without waiting for what plugins started."""
    with os.fdopen(request["report"], "wb", buffering=0) as report:
        report.write(b"ready\n")
        for fields in request["plugins"]:
            plugin = FoundPlugin(**{**fields, "requires": tuple(fields["requires"])})
            outcome = outcome_to_dict(load_plugin(plugin))
            report.write(json.dumps(outcome).encode("utf-8") + b"\n")
        os._exit(0)
