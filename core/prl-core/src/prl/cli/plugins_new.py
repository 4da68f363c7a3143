"""`prl plugins new KIND NAME`."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from string import Template

from prl import __version__
from prl.types import ConfigError, close_names

_SCAFFOLD = Path(__file__).with_name("scaffold")
_COMMON = "common"
_SUFFIX = ".tmpl"
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*")
_NEEDS = "needs.txt"


def run(kind: str, name: str, /, *, dir: Path = Path()) -> None:
    """Write a new plugin's distribution, which passes the conformance kit as it is.

    Parameters
    ----------
    kind
        renderer, parser, environment, client-mode, attention or loss.
    name
        The name it will offer, such as acme-3: small letters, digits, hyphens and dots.
    dir
        Folder to write the distribution's folder into.
    """
    target = write_distribution(kind, name, dir)
    print(f"wrote {target}")
    print(f"next: pip install -e '{target}[test]' && prl plugins check {target.name} && pytest {target}")


def write_distribution(kind: str, name: str, folder: Path) -> Path:
    """Write `prl-KIND-NAME` into a folder and return it; raise `ConfigError` where it is there already."""
    _check(kind, name)
    dist = f"prl-{kind}-{name.replace('.', '-')}"
    target = folder / dist
    if target.exists():
        raise ConfigError(
            f"{target} is there already", where=str(folder.absolute()), next_step="Choose another name or folder."
        )
    fields = _fields(kind, name, dist)
    scratch = folder / f".{dist}.{os.getpid()}"
    try:
        for source in (_COMMON, kind):
            _write_tree(_SCAFFOLD / source, scratch, fields)
        scratch.rename(target)
    except OSError as error:
        raise ConfigError(
            f"the distribution cannot be written: {error}",
            where=str(target),
            next_step="Choose a folder you may write.",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def kinds() -> list[str]:
    """Return the kinds that there is a scaffold for."""
    return sorted(path.name for path in _SCAFFOLD.iterdir() if path.is_dir() and path.name != _COMMON)


def _check(kind: str, name: str) -> None:
    if kind not in kinds():
        raise ConfigError(
            f"there is no scaffold for {kind!r}",
            where="prl plugins new",
            next_step=f"{close_names(kind, kinds())} Kinds: {', '.join(kinds())}.".strip(),
        )
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name to offer",
            where="prl plugins new",
            next_step="Use small letters, digits, and single hyphens or dots between them, such as acme-3.",
        )


def _fields(kind: str, name: str, dist: str) -> dict[str, str]:
    major, minor = __version__.split(".")[:2]
    needs = _SCAFFOLD / kind / _NEEDS
    requirements = [f"prl-core>={major}.{minor},<{major}.{int(minor) + 1}"]
    requirements += needs.read_text(encoding="utf-8").split() if needs.is_file() else []
    return {
        "dist": dist,
        "module": dist.replace("-", "_"),
        "name": name,
        "class_name": "".join(part.capitalize() for part in re.split(r"[-.]", name)),
        "description": f"The {name} {kind.replace('-', ' ')} for prl",
        "dependencies": ", ".join(f'"{one}"' for one in requirements),
    }


def _write_tree(source: Path, target: Path, fields: dict[str, str]) -> None:
    for template in sorted(source.rglob(f"*{_SUFFIX}")):
        place = str(template.relative_to(source)).removesuffix(_SUFFIX).replace("MODULE", fields["module"])
        path = target / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(template.read_text(encoding="utf-8")).substitute(fields), encoding="utf-8")
