"""Search-R1's turns for any tokenizer: tags are looked for in the text of the policy's own tokens."""

import time
from collections.abc import Sequence
from typing import Final

from libra_core.config.workload import SearchR1Config
from libra_core.ports.environment import Episode, TurnStops
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory
from libra_core.workloads.chat import Chat
from libra_core.workloads.episodes import WaitingEpisode
from libra_core.workloads.search_r1 import tags
from libra_core.workloads.search_r1.passages import Passage
from libra_core.workloads.search_r1.retrievers import Retriever
from libra_core.workloads.search_r1.scoring import exact_match, token_f1
from libra_core.workloads.spoken import last_turn, said_aloud
from libra_core.workloads.text_codec import TextCodec
from libra_core.workloads.tool_text import CHARACTERS_PER_TOKEN

SEARCH_TOOL: Final = "search"
INSTRUCTION: Final = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> and it will "
    "return the top searched results between <information> and </information>. You can search as many times as you want. If you "
    "find no further external knowledge needed, you can directly provide the answer inside <answer> and </answer>, without "
    "detailed illustrations. For example, <answer> Beijing </answer>. Question: {}\n"
)
_INVALID: Final = (
    "My action is not correct. If I want to search, I should put the query between <search> and </search>. If I want to give the "
    "final answer, I should put the answer between <answer> and </answer>."
)
_MAX_QUERY: Final = 2000


class TagSearchEnvironment:
    """Implements `ports.environment.Environment`; holds no state of a trajectory."""

    def __init__(self, codec: TextCodec, settings: SearchR1Config, retriever: Retriever) -> None:
        self._codec = codec
        self._chat = Chat(codec)
        self._settings = settings
        self._retriever = retriever
        closings = (tags.SEARCH_END, tags.ANSWER_END)
        single = tuple(token_id for tag in closings if (token_id := codec.special(tag)) is not None)
        spelled = tuple(tag for tag in closings if codec.special(tag) is None)
        candidates = codec.containing(">") if spelled else ()
        self._stops = TurnStops(token_ids=(*self._chat.end_ids, *single), candidates=candidates, texts=spelled)

    def stops(self) -> TurnStops:
        return self._stops

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        return parse_search(self._chat.said(turn_token_ids))

    async def reset(self, prompt: Prompt) -> Episode:
        return WaitingEpisode(self._search)

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        return self._answer(call, status, "The search gave no answer in time.", 0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        """By the last closed answer of the last turn; tool text and prompt are not looked at."""
        written = last_answer(self._chat.said(last_turn(trajectory)))
        if written is None:
            return 0.0
        if self._settings.reward == "f1":
            reward = max((token_f1(written, accepted) for accepted in prompt.answers), default=0.0)
        else:
            reward = float(exact_match(written, prompt.answers))
        return reward if reward > 0 else self._settings.format_reward

    def render(self, token_ids: Sequence[int]) -> str:
        return self._codec.decode(token_ids)

    async def _search(self, call: ToolCall) -> ToolReturn:
        started_s = time.perf_counter()
        if call.malformed:
            return self._answer(call, ToolStatus.MALFORMED, _INVALID, 0.0)
        passages = await self._retriever.search(call.argument, self._settings.top_k)
        duration_s = time.perf_counter() - started_s
        if not passages:
            return self._answer(call, ToolStatus.ERROR, "Nothing found.", duration_s)
        body: list[int] = []
        for number, passage in enumerate(passages, start=1):
            text = _document_text(number, passage)[: CHARACTERS_PER_TOKEN * self._settings.max_passage_tokens]
            body += self._codec.encode_plain(text)[: self._settings.max_passage_tokens]
        return self._wrapped(call, ToolStatus.OK, body, duration_s)

    def _answer(self, call: ToolCall, status: ToolStatus, text: str, duration_s: float) -> ToolReturn:
        return self._wrapped(call, status, self._codec.encode_plain(text), duration_s)

    def _wrapped(self, call: ToolCall, status: ToolStatus, body: Sequence[int], duration_s: float) -> ToolReturn:
        """The tags are the environment's own, so they are written as the tokenizer has them."""
        start = self._codec.encode(f"\n\n{tags.INFORMATION_START}")
        end = self._codec.encode(f"{tags.INFORMATION_END}\n\n")
        return ToolReturn(tool=call.tool, status=status, token_ids=(*start, *body, *end), duration_s=duration_s)


def parse_search(text: str) -> ToolCall | None:
    """The search that a turn ends with, None when it gives an answer or stops without a tag.

    The engine stops at a tag in the middle of a thought too; that is a malformed search, after which the policy goes on.
    """
    aloud = said_aloud(text)
    if aloud != text and not aloud.strip() and text.rstrip().endswith((tags.SEARCH_END, tags.ANSWER_END)):
        return ToolCall(tool=SEARCH_TOOL, argument="", malformed=True)
    text = aloud
    if tags.ANSWER_END in text:
        return None
    opened, closed = text.count(tags.SEARCH_START), text.count(tags.SEARCH_END)
    if not opened and not closed:
        return None
    query = text.rpartition(tags.SEARCH_START)[2].partition(tags.SEARCH_END)[0].strip()
    if opened != 1 or closed != 1 or text.index(tags.SEARCH_END) < text.index(tags.SEARCH_START):
        return ToolCall(tool=SEARCH_TOOL, argument=query[:_MAX_QUERY], malformed=True)
    malformed = not query or len(query) > _MAX_QUERY
    return ToolCall(tool=SEARCH_TOOL, argument=query[:_MAX_QUERY], malformed=malformed)


def last_answer(text: str) -> str | None:
    """Between the last closed pair of answer tags, thoughts left out."""
    before, closed, _ = said_aloud(text).rpartition(tags.ANSWER_END)
    if not closed or tags.ANSWER_START not in before:
        return None
    return before.rpartition(tags.ANSWER_START)[2].strip()


def _document_text(number: int, passage: Passage) -> str:
    return f"Doc {number}(Title: {passage.title}) {passage.text}\n"
