"""An environment of three short turns: a random model gets rewards that differ, and a fault finds something to hit."""

import asyncio

from pydantic import BaseModel

from prl.contracts import Example, StepResult
from prl.plugin import EnvironmentEntry, hookimpl

TURNS = 3


class Options(BaseModel):
    pause: float = 0.05


class Talk:
    name = "talk"
    max_turns = TURNS
    tools = None

    def __init__(self, options):
        self.options = options

    def example(self, index):
        return Example(id=f"talk-{index}", messages=({"role": "user", "content": f"Say something about {index}."},))

    def start(self, example):
        return Episode(self.options.pause)


class Episode:
    def __init__(self, pause):
        self.pause = pause
        self.turns = 0
        self.reward = 0.0

    async def step(self, message, parsed):
        await asyncio.sleep(self.pause)
        self.turns += 1
        self.reward += sum(map(ord, str(message.get("content") or ""))) % 7 / 7
        reply = {"role": "user", "content": f"Go on, this was turn {self.turns}."}
        return StepResult(messages=(reply,), done=self.turns == TURNS, reward=self.reward)


@hookimpl
def prl_environments():
    return [EnvironmentEntry(name="talk", target="faults_talk_plugin:Talk", options="faults_talk_plugin:Options")]
