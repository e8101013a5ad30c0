"""A workload of your own: one tool and one reward function, played by an agent that needs no model.

To train on it, implement `PromptSource` too, add a section to `libra_core/config/workload.py` and a case to
`libra_core/workloads/build.py` (docs/workloads.md#your-own). A score is a finite number. What the policy does wrong is data; an
exception means that the scorer itself failed.
"""

import asyncio
import itertools
import re
from collections.abc import Iterator, Sequence

from libra_core.ports.environment import Episode, TurnStops
from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory
from libra_core.workloads.check.codec import byte_codec
from libra_core.workloads.check.runner import Checker, CheckPlan, CheckReport
from libra_core.workloads.episodes import InstantEpisode
from libra_core.workloads.spoken import last_turn

CODEC = byte_codec()
CALL = re.compile(r"<lookup>(\w+)</lookup>\Z")
STOCK = {"apples": 3, "pears": 12, "plums": 40}


class StockEnvironment:
    """Implements `ports.environment.Environment`: how many of something are there? One may look it up."""

    def stops(self) -> TurnStops:
        return TurnStops(token_ids=CODEC.encode(">")[-1:])

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        found = CALL.search(CODEC.decode(turn_token_ids))
        return ToolCall(tool="lookup", argument=found[1]) if found else None

    async def reset(self, prompt: Prompt) -> Episode:
        return InstantEpisode(self._look_up)

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        return ToolReturn(tool=call.tool, status=status, token_ids=CODEC.encode_plain("no answer"), duration_s=0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        """1 for the right number in the last turn, half for one that is off by one, read from what the policy itself wrote."""
        numbers = re.findall(r"\d+", CODEC.decode(last_turn(trajectory)))
        if not numbers:
            return 0.0
        return max(0.0, 1.0 - abs(int(numbers[-1]) - int(prompt.answers[0])) / 2)

    def render(self, token_ids: Sequence[int]) -> str:
        return CODEC.decode(token_ids)

    def _look_up(self, call: ToolCall) -> ToolReturn:
        status = ToolStatus.OK if call.argument in STOCK else ToolStatus.ERROR
        text = str(STOCK.get(call.argument, f"no {call.argument} here"))
        return ToolReturn(tool=call.tool, status=status, token_ids=CODEC.encode_plain(text), duration_s=0.0)


class Looker:
    """Looks the thing up and says what it read."""

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        return answers[-1] if answers else f"<lookup>{prompt.kind}</lookup>"


class Guesser:
    """Does not look."""

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        return "11"


def prompts() -> Iterator[Prompt]:
    for thing, count in itertools.cycle(STOCK.items()):
        text = f"How many {thing}?"
        yield Prompt(prompt_id=PromptId(thing), token_ids=CODEC.encode(text), text=text, answers=(str(count),), kind=thing)


def play(agent: Looker | Guesser, episodes: int) -> CheckReport:
    plan = CheckPlan(
        episodes=episodes, at_once=8, max_turns=3, tool_deadline_s=5, score_deadline_s=5, queue_deadline_s=5, threads=2
    )
    checker = Checker(StockEnvironment(), CODEC, plan)
    return asyncio.run(checker.run(prompts(), lambda number: agent, lambda done: None))


def main() -> None:
    for agent in (Looker(), Guesser()):
        report = play(agent, episodes=30)
        print(f"{type(agent).__name__}: mean reward {report.mean_reward:.2f}, tool calls {report.tool_calls}, lost {report.lost}")


if __name__ == "__main__":
    main()
