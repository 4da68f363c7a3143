"""Check a plugin's own requirement on prl-core, from metadata, before anything of it is imported."""

from __future__ import annotations

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement

from prl import __version__

from .discovery import CORE_PLUGIN, FoundPlugin
from .naming import same_name
from .state import Outcome, Status


def incompatibility(plugin: FoundPlugin, core_version: str = __version__) -> Outcome | None:
    """Return why this core does not fit the plugin, or None where it fits."""
    requirements = []
    for text in plugin.requires:
        try:
            requirement = Requirement(text)
            if same_name(requirement.name, CORE_PLUGIN) and _applies(requirement):
                requirements.append(requirement)
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as cause:
            if same_name(text[: len(CORE_PLUGIN)], CORE_PLUGIN):
                told = " ".join(str(cause).split())  # the reader draws an arrow below the place
                return _refuse(
                    plugin, f"its requirement {text!r} cannot be read: {told}", "Ask its author to correct it."
                )
    if not requirements:
        lower = ".".join(core_version.split(".")[:2])
        return _refuse(
            plugin,
            "it declares no requirement on prl-core, so nothing says which plugin API it was written for",
            f'Ask its author to add "{CORE_PLUGIN}>={lower}" to its dependencies.',
        )
    for requirement in requirements:
        if not requirement.specifier.contains(core_version, prereleases=True):
            return _refuse(
                plugin,
                f"it needs prl-core {requirement.specifier}, and {core_version} is installed",
                f'Run: pip install "{CORE_PLUGIN}{requirement.specifier}", or another version of {plugin.dist}.',
            )
    return None


def _applies(requirement: Requirement) -> bool:
    """Whether the requirement's marker, if any, is true here; raise where the marker means nothing."""
    return not requirement.marker or requirement.marker.evaluate({"extra": ""})


def _refuse(plugin: FoundPlugin, error: str, next_step: str) -> Outcome:
    where = f"Requires-Dist of {plugin.dist} {plugin.version} at {plugin.origin}"
    return Outcome(status=Status.INCOMPATIBLE, error=error, where=where, next_step=next_step)
