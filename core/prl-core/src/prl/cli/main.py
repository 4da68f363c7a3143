"""`prl`: find the command, import it, run it, and tell errors in three parts."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from prl import __version__
from prl.builtin import prl_commands
from prl.plugin import CommandEntry, configure_registry, load_target
from prl.plugin.settings import STRICT_VARIABLE
from prl.types import ConfigError, PrlError, close_names

if TYPE_CHECKING:
    import cyclopts

DEBUG_VARIABLE = "PRL_DEBUG"
USAGE_EXIT = 2
INTERRUPT_EXIT = 130
_SWITCHES = {"--debug": DEBUG_VARIABLE, "--strict-plugins": STRICT_VARIABLE}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code (1 for an error, 2 for a wrong command line)."""
    words = _take_switches(list(sys.argv[1:] if arguments is None else arguments))
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except PrlError as error:
        tell(error)
        return USAGE_EXIT if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        if arguments is None:  # all is put away: a second Ctrl-C while Python ends must end it, not print where it was
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return INTERRUPT_EXIT
    except BrokenPipeError:  # the reader of our output left, as `head` does
        _drop_output()
        return 0
    except (OSError, UnicodeEncodeError) as cause:
        _drop_output()
        tell(_system_error(cause))
        return 1


def _drop_output() -> None:
    """Let what cannot be written go nowhere: Python would complain of it once more as it ends."""
    with contextlib.suppress(OSError, ValueError):  # where another file failed, this one is whole
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):  # standard output may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _system_error(cause: OSError | UnicodeEncodeError) -> PrlError:
    """Return what the system refused, where no part of prl knew more about it."""
    if isinstance(cause, UnicodeEncodeError):
        error = PrlError(
            f"the output holds {cause.object[cause.start : cause.end]!r}, which the encoding {cause.encoding} lacks",
            where="standard output",
            next_step="Set PYTHONUTF8=1, or a locale with UTF-8, and run it again.",
        )
    else:
        error = PrlError(
            str(cause.strerror or cause) or type(cause).__name__,
            where=str(cause.filename or "standard output, or a file"),
            next_step="Repair what it says and run it again; --debug shows where it happened.",
        )
    error.__cause__ = cause
    return error


class UsageError(ConfigError):
    """The command line itself is wrong."""

    code = "usage"


def tell(error: PrlError) -> None:
    """Print an error's three parts on stderr, and its traceback where `--debug` or `PRL_DEBUG` asks for it."""
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        traceback.print_exception(error)
    print(f"prl: error: {error}", file=sys.stderr)


def _take_switches(words: list[str]) -> list[str]:
    """Move the switches that every command has into the environment, so that child processes see them too."""
    end = words.index("--") if "--" in words else len(words)
    for switch in set(words[:end]) & _SWITCHES.keys():
        os.environ[_SWITCHES[switch]] = "1"
    return [word for word in words[:end] if word not in _SWITCHES] + words[end:]


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        from .help import print_help

        print_help()
        return 0 if words else USAGE_EXIT
    if words[0] in ("-V", "--version"):
        print(f"prl {__version__}")
        return 0
    found = _match(list(prl_commands()), words)
    if found is None:
        group = [entry for entry in prl_commands() if entry.name.split()[0] == words[0]]
        if group:
            return _group(words, group)
        found = _plugin_command(words)
    entry, rest = found
    return _call(entry, rest)


def _match(entries: Sequence[CommandEntry], words: Sequence[str]) -> tuple[CommandEntry, list[str]] | None:
    """Return the command with the longest name that the words begin with, and the words after it."""
    for entry in sorted(entries, key=lambda entry: -len(entry.name.split())):
        name = entry.name.split()
        if list(words[: len(name)]) == name:
            return entry, list(words[len(name) :])
    return None


def _group(words: Sequence[str], group: Sequence[CommandEntry]) -> int:
    """Print a group's verbs (`prl plugins --help`), or tell that the verb is not one of them."""
    verbs = [entry.name.split()[1] for entry in group]
    if len(words) > 1 and words[1] not in ("-h", "--help"):
        raise UsageError(
            f"{words[0]!r} has no verb {words[1]!r}",
            where=f"prl {' '.join(words)}",
            next_step=f"{close_names(words[1], verbs)} Verbs: {', '.join(verbs)}.".strip(),
        )
    from .help import print_commands

    print_commands(f"Usage: prl {words[0]} VERB", group)
    return 0 if len(words) > 1 else USAGE_EXIT


def _plugin_command(words: Sequence[str]) -> tuple[CommandEntry, list[str]]:
    from .settings import settings_for

    registry = configure_registry(settings_for(words))
    entries = registry.all(CommandEntry)
    found = _match(entries, words)
    if found:
        return found
    if words[0].startswith("-"):
        raise UsageError(f"unknown option {words[0]!r}", where="prl", next_step="See: prl --help")
    close = close_names(words[0], [entry.name.split()[0] for entry in entries])
    if close:
        raise UsageError(f"no command is named {words[0]!r}", where="prl", next_step=f"{close} See: prl --help")
    entry = registry.find(CommandEntry, words[0])  # raises: in conflict, broken, or unknown, each with its next step
    return entry, list(words[1:])


def _call(entry: CommandEntry, words: Sequence[str]) -> int:
    function = load_target(entry)
    call, bound = _parse(entry, function, words)
    result = call(*bound.args, **bound.kwargs)
    return result if isinstance(result, int) else 0


def _parse(
    entry: CommandEntry, function: Callable[..., Any], words: Sequence[str]
) -> tuple[Callable[..., Any], inspect.BoundArguments]:
    import cyclopts

    plain = cyclopts.Parameter(negative=())  # `--no-load` has no `--no-no-load`
    app = cyclopts.App(name=f"prl {entry.name}", version_flags=[], help_format="plaintext", default_parameter=plain)
    app.default(function)
    tokens = ["/dev/stdin" if word == "-" else word for word in words]  # the parser takes a lone hyphen for an option
    try:
        call, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as cause:
        text = _told(cause)
        raise UsageError(text, where=f"prl {entry.name}", next_step=f"See: prl {entry.name} --help") from cause
    return call, bound


def _told(cause: cyclopts.CycloptsError) -> str:
    """Return what is wrong with a command line, in one line."""
    import cyclopts

    text = " ".join(str(cause).split())
    argument = cause.argument
    is_absent = isinstance(cause, cyclopts.MissingArgumentError) and not cause.keyword
    if is_absent and argument is not None and not argument.tokens:
        return text.replace(f"Parameter {argument.name} requires an argument", f"{argument.name} is missing")
    return text


if __name__ == "__main__":
    raise SystemExit(main())
