"""Which renderer a model id means, over all first-party families together.

Model ids are matched exactly: https://github.com/thinking-machines-lab/tinker-cookbook/issues/407,
https://github.com/rllm-org/rllm/pull/702.
"""

from __future__ import annotations

import pytest

from prl.plugin import get_registry, resolve_renderer
from prl.types import PluginError

FAMILIES = {
    "Qwen/Qwen3-8B": "qwen3",
    "Qwen/Qwen3.5-9B": "qwen3.5",
    "Qwen/Qwen3.6-35B-A3B": "qwen3.6",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3-vl",
    "Qwen/Qwen3-4B-Instruct-2507": "qwen3-instruct-2507",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-coder",
    "moonshotai/Kimi-K2-Instruct": "kimi-k2",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "moonshotai/Kimi-K2.6": "kimi-k2.6",
    "zai-org/GLM-4.5-Air": "glm-4.5",
    "zai-org/GLM-5": "glm-5",
    "zai-org/GLM-5.1": "glm-5.1",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "openai/gpt-oss-20b": "gpt-oss",
    "MiniMaxAI/MiniMax-M2": "minimax-m2",
}


@pytest.mark.parametrize("model", list(FAMILIES))
def test_a_model_id_means_its_own_renderer(model: str) -> None:
    """A substring match would give Qwen3.5 the Qwen3 format and K2.5 the K2 format, without a word."""
    assert resolve_renderer(model=model).name == FAMILIES[model]


@pytest.mark.parametrize("model", ["/data/runs/my-qwen3-sft", "acme/qwen3-remix", "Qwen/Qwen3", "qwen/qwen3-8b"])
def test_an_unknown_id_is_an_error_that_names_it(model: str) -> None:
    """A fine-tune must name its renderer: a silent default would train on a wrong format."""
    with pytest.raises(PluginError) as caught:
        resolve_renderer(model=model)
    assert model in str(caught.value)


def test_no_model_id_and_no_template_is_claimed_twice() -> None:
    """Two renderers that claim one id would make the choice depend on chance."""
    records = get_registry().all("renderer")
    for field in ("models", "templates"):
        claims = [claim for record in records for claim in getattr(record, field)]
        assert len(claims) == len(set(claims))
