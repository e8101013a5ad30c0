"""Search tool and reward of Search-R1, on tokens: what the policy sampled is judged, never re-encoded text."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from libra_core.ports.environment import Episode, TurnStops
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory
from libra_core.workloads.episodes import InstantEpisode, WaitingEpisode
from libra_core.workloads.search_r1 import tags
from libra_core.workloads.search_r1.facts import FactWorld
from libra_core.workloads.search_r1.passages import corpus
from libra_core.workloads.search_r1.retrieval import PassageIndex
from libra_core.workloads.search_r1.scoring import exact_match
from libra_core.workloads.spoken import last_turn
from libra_core.workloads.text_codec import TextCodec

SEARCH_TOOL: Final = "search"
NO_RESULT: Final = "Nothing found."
MALFORMED_CALL: Final = "This is not a search."
SEARCH_FAILED: Final = "The search failed."


class SearchEnvironment:
    """Implements `ports.environment.Environment`; holds no state of a trajectory, so threads may share it."""

    def __init__(self, codec: TextCodec, world: FactWorld, *, top_k: int, max_passage_tokens: int) -> None:
        self._codec = codec
        self._index = PassageIndex(corpus(world))
        self._top_k = top_k
        self._max_passage_tokens = max_passage_tokens
        self._tag_ids = {tag: codec.token(tag) for tag in tags.SPECIAL_TOKENS if tag != tags.PAD}

    def stops(self) -> TurnStops:
        return TurnStops(token_ids=(self._tag_ids[tags.SEARCH_END], self._tag_ids[tags.MESSAGE_END]))

    async def reset(self, prompt: Prompt) -> Episode:
        if not prompt.instance:
            return InstantEpisode(lambda call: self.call_tool(prompt, call))
        return WaitingEpisode(lambda call: self._search_slowly(prompt, call))

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        if not turn_token_ids or turn_token_ids[-1] != self._tag_ids[tags.SEARCH_END]:
            return None
        body = tuple(turn_token_ids[:-1])
        query = self._between(body, tags.SEARCH_START)
        if query is None:
            return ToolCall(tool=SEARCH_TOOL, argument=self._codec.decode(body).strip(), malformed=True)
        argument = self._codec.decode(query).strip()
        malformed = not argument or any(token in self._tag_ids.values() for token in query)
        return ToolCall(tool=SEARCH_TOOL, argument=argument, malformed=malformed)

    def call_tool(self, prompt: Prompt, call: ToolCall) -> ToolReturn:
        started_s = time.perf_counter()
        status, token_ids = self._answer(call)
        return ToolReturn(tool=call.tool, status=status, token_ids=token_ids, duration_s=time.perf_counter() - started_s)

    async def _search_slowly(self, prompt: Prompt, call: ToolCall) -> ToolReturn:
        """As over a network: the prompt says how long."""
        started_s = time.perf_counter()
        await asyncio.sleep(float(prompt.instance))
        return replace(self.call_tool(prompt, call), duration_s=time.perf_counter() - started_s)

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        token_ids = self._codec.encode(tags.information_text(SEARCH_FAILED))
        return ToolReturn(tool=call.tool, status=status, token_ids=token_ids, duration_s=0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        return self.judge(prompt, trajectory)

    def judge(self, prompt: Prompt, trajectory: Trajectory) -> float:
        """1.0 when the last turn ends with a closed answer that matches; earlier answers and all tool text are ignored."""
        turn = last_turn(trajectory)
        closing = (self._tag_ids[tags.ANSWER_END], self._tag_ids[tags.MESSAGE_END])
        if turn[-2:] != closing:
            return 0.0
        answer = self._between(turn[:-2], tags.ANSWER_START)
        return float(answer is not None and exact_match(self._codec.decode(answer), prompt.answers))

    def render(self, token_ids: Sequence[int]) -> str:
        return self._codec.decode(token_ids)

    def _answer(self, call: ToolCall) -> tuple[ToolStatus, tuple[int, ...]]:
        if call.malformed:
            return ToolStatus.MALFORMED, self._codec.encode(tags.information_text(MALFORMED_CALL))
        passages = self._index.search(call.argument, self._top_k)
        if not passages:
            return ToolStatus.ERROR, self._codec.encode(tags.information_text(NO_RESULT))
        body: list[int] = []
        for passage in passages:
            body += self._codec.encode(f" {passage.text}")[: self._max_passage_tokens]
        return ToolStatus.OK, (self._tag_ids[tags.INFORMATION_START], *body, self._tag_ids[tags.INFORMATION_END])

    def _between(self, token_ids: tuple[int, ...], opening: str) -> tuple[int, ...] | None:
        """What follows the last opening tag, or None without one."""
        opening_id = self._tag_ids[opening]
        for position in range(len(token_ids) - 1, -1, -1):
            if token_ids[position] == opening_id:
                return token_ids[position + 1 :]
        return None
