"""`prl report`."""

from __future__ import annotations

from pathlib import Path


def run(directory: Path, /, *, rollouts: int = 6) -> None:
    """Write a run's report.html anew, also while the run is going on.

    Parameters
    ----------
    directory
        The run folder.
    rollouts
        How many rollouts are shown in full.
    """
    import tomllib

    from prl import load_tokenizer
    from prl_train.report import write_report
    from prl_train.run import RunError, RunFolder

    folder = RunFolder(directory)
    if not folder.is_run():
        raise RunError(
            f"{directory} is not a run folder", where="prl report", next_step="name the run.directory of a run"
        )
    config = tomllib.loads(folder.config.read_text(encoding="utf-8"))
    model = config["model"].get("path") or str(folder.model)
    print(write_report(folder, load_tokenizer(model), rollouts=rollouts))
