"""Agents of the tests: they know an OpenAI address and nothing of tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TOOLS = """
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "guess",
            "description": "Guess the secret number.",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        },
    }
]
PROMPT = "Find my number from 1 to 3. You have 2 guesses."


def judge(call, secret):
    guess = json.loads(call.function.arguments).get("n")
    if guess == secret:
        return "correct"
    return "higher" if isinstance(guess, int) and secret > guess else "lower"
"""

SCRIPT = f"""
import json, os
from openai import OpenAI

{TOOLS}
secret = json.loads(os.environ["PRL_TASK"])["data"]["secret"]
client = OpenAI()
messages = [{{"role": "user", "content": PROMPT}}]
for _ in range(2):
    answer = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    said = judge(message.tool_calls[0], secret)
    print(said)
    if said == "correct":
        open("solved", "w").close()
        break
    messages.append({{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": said, "name": "guess"}})
"""

PLUGIN = """
from prl.plugin import EnvironmentEntry, hookimpl


@hookimpl
def prl_environments():
    return [EnvironmentEntry(name="acme-agent", target="acme_agent:create")]
"""

MODULE = f"""
import json
from openai import AsyncOpenAI
from prl.contracts import AgentResult, Example

{TOOLS}
rewrites = False


class Agent:
    name = "acme-agent"

    def __init__(self):
        self.client = AsyncOpenAI(api_key="set later", base_url="http://set.later")

    def example(self, index):
        asked = {{"role": "user", "content": PROMPT}}
        return Example(id=str(index), messages=(asked,), data={{"secret": 1 + index % 3}})

    async def run(self, example, endpoint):
        client = self.client.with_options(api_key=endpoint.api_key, base_url=endpoint.base_url)
        messages = list(example.messages)
        for turn in range(2):
            answer = await client.chat.completions.create(model=endpoint.model, messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            if not message.tool_calls:
                return AgentResult(reward=0.0)
            said = judge(message.tool_calls[0], example.data["secret"])
            if said == "correct":
                return AgentResult(reward=1.0, metrics={{"turn": float(turn)}})
            told = {{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": said, "name": "guess"}}
            messages += [message.model_dump(exclude_none=True), told]
            if rewrites:
                messages[0] = {{"role": "user", "content": "Find it."}}
        return AgentResult(reward=0.0)


def create(options):
    return Agent()
"""


def write_command_tasks(folder: Path) -> tuple[Path, Path]:
    """Write the agent's script and its tasks; return both paths."""
    script, tasks = folder / "agent.py", folder / "tasks.jsonl"
    script.write_text(SCRIPT)
    check = [sys.executable, "-c", "import os; raise SystemExit(not os.path.exists('solved'))"]
    lines = [{"prompt": "guess", "check": check, "data": {"secret": secret}} for secret in (1, 2, 3)]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return script, tasks
