"""Agents that are programs of their own, and a tiny model that has learnt to play one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from fixtures.environments import ROOT

from prl.gateway import GatewaySession
from prl.tokenizer import Tokenizer
from prl.trajectory import interleave_rollout
from prl.types import GenerateChoice, GenerateRequest, GenerateResponse, Rollout, Turn

CONTEXT = 1024

# mini-swe-agent as its documentation embeds it in a program; only the prompts are shorter than its own.
MINI = r"""
import json, os, sys
import litellm
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

class Forgetful(DefaultAgent):
    '''Cuts long tool output out of its history before the last request, as many agents do to save tokens.'''

    def query(self):
        for message in self.messages[:-1]:
            if os.environ.get("FORGET") and message["role"] == "tool" and len(self.messages) > 6:
                message["content"] = "(removed)"
        return super().query()

model = LitellmModel(
    model_name="openai/" + os.environ["OPENAI_MODEL"],
    model_kwargs={"api_base": os.environ["OPENAI_BASE_URL"], "temperature": 0.0},
    cost_tracking="ignore_errors",
)
agent = Forgetful(
    model,
    LocalEnvironment(cwd=sys.argv[1], timeout=20),
    system_template="You fix code with bash.",
    instance_template="{{task}}",
    step_limit=8,
)
result = agent.run("calc.py adds wrong. Repair it, run check.py, then submit.")
print(json.dumps({"result": result, "calls": agent.n_calls}))
"""

STEPS = (
    ("See the code.", "cat calc.py"),
    ("The sign is wrong.", "sed -i 's/a - b/a + b/' calc.py"),
    ("Check it.", "python3 check.py"),
    ("Done.", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
)


def make_task(folder: Path) -> Path:
    """Write a small program with a fault, and a check of it."""
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "check.py").write_text("from calc import add\nassert add(2, 3) == 5\nprint('right')\n")
    return folder


def check_passes(folder: Path) -> bool:
    """Whether the program is right now."""
    done = subprocess.run(["python3", "-B", "check.py"], cwd=folder, capture_output=True, timeout=30, check=False)
    return done.returncode == 0


def said(thought: str, command: str) -> str:
    """Return a turn as Qwen3 writes it: reasoning, then a call."""
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<think>\n{thought}\n</think>\n\n<tool_call>\n{call}\n</tool_call><|im_end|>"


class ScriptedEngine:
    """Says fixed turns, over and over; what a gateway records of it is what a model can be taught."""

    def __init__(self, tokenizer: Tokenizer, lines: Sequence[str]) -> None:
        self._lines = cycle([tokenizer.encode(line) for line in lines])

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        lines = [next(self._lines) for _ in range(request.sampling.n)]
        said = [GenerateChoice(token_ids=ids, logprobs=[0.0] * len(ids), finish_reason="stop") for ids in lines]
        return GenerateResponse(choices=tuple(said), weight_version=0)

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("the gateway sends ids")

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": "tiny", "max_model_len": CONTEXT}]

    async def health(self) -> bool:
        return True

    async def load_weights(self, directory: str, version: int) -> None:
        return None

    async def close(self) -> None:
        return None


@dataclass
class Agents:
    """The interpreter that has the agents."""

    python: str

    def run_mini(self, session: GatewaySession, base_url: str, task: Path, home: Path, **more: str) -> str:
        """Let mini-swe-agent work on a task through a session's key; return what it printed."""
        script = home / "mini.py"
        script.write_text(MINI, encoding="utf-8")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "MSWEA_GLOBAL_CONFIG_DIR": str(home / "mini"),
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "2",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": session.api_key,
            "OPENAI_MODEL": "tiny",
            **more,
        }
        words = [self.python, str(script), str(task)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def find_agents() -> Agents | None:
    """Return the environment of `make agents-env` ($PRL_AGENTS_PYTHON, else .venv-agents), where there is one."""
    python = os.environ.get("PRL_AGENTS_PYTHON") or str(ROOT / ".venv-agents" / "bin" / "python")
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('minisweagent') is None)"
    try:
        found = subprocess.run([python, "-c", look], check=False, timeout=60).returncode == 0
    except OSError:
        found = False
    return Agents(python) if found else None


def rollout_of(turns: Sequence[Turn]) -> Rollout:
    return Rollout(trajectory_id="agent", turns=tuple(turns), reward=1.0)


def make_student(folder: Path, rehearsals: Sequence[str]) -> Path:
    """Write a tiny untrained Qwen3 whose vocabulary knows the words of the rehearsals."""
    from prl.plugin import RendererEntry, get_registry
    from prl_train.models import create_tiny_qwen3, train_small_tokenizer

    controls = get_registry().find(RendererEntry, "qwen3").control_tokens
    tokenizer = train_small_tokenizer(list(rehearsals), controls, 620, use_regex=True)
    return create_tiny_qwen3(folder, tokenizer.to_str(), max_position_embeddings=CONTEXT)


def teach(model: Path, folder: Path, *recordings: Sequence[Turn], steps: int = 50) -> Path:
    """Train the model on recorded turns until it says them by itself; return the new weights' directory."""
    from prl_train.data import SupervisedSample
    from prl_train.data.sft_rows import SftSample
    from prl_train.sft import warm_up
    from prl_train.trainer import Trainer, TrainerConfig

    found = [one for turns in recordings for one in interleave_rollout(rollout_of(turns)).samples]
    rows = [(one.prompt_ids + one.completion_ids, [False] * len(one.prompt_ids) + one.completion_mask) for one in found]
    samples: list[SupervisedSample] = [SftSample(*row) for row in rows if not _is_begun_by(row[0], rows)]
    trainer = Trainer(TrainerConfig(model=str(model), seq_len=CONTEXT, lr=6e-3, threads=1))
    trainer.load()
    metrics = warm_up(trainer, cycle(samples), steps, len(samples), lr=6e-3)
    assert metrics["loss"] < 0.02, f"the model has not learnt the transcript: {metrics}"
    return trainer.publish_weights(folder, 1)


def _is_begun_by(ids: list[int], rows: Sequence[tuple[list[int], list[bool]]]) -> bool:
    """Whether a longer row begins with these ids, and teaches all that they do."""
    return any(len(other) > len(ids) and other[: len(ids)] == ids for other, _ in rows)
