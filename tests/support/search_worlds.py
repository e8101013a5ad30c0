"""Builders: two countries, a byte-level tokenizer without merges, trajectories out of text."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from libra_core.types.ids import GroupId, PolicyVersion, PromptId, TrajectoryId
from libra_core.types.trajectory import FinishReason, Prompt, Trajectory, VersionSegment
from libra_core.workloads.search_r1 import tags
from libra_core.workloads.search_r1.environment import SearchEnvironment
from libra_core.workloads.search_r1.facts import Country, FactWorld
from libra_core.workloads.text_codec import TextCodec

KENYA = Country(
    name="Kenya", continent="Africa", capital="Nairobi", currency="Kenyan Shilling", population="51 million", cities=("Mombasa",)
)
GUINEA = Country(name="Guinea", continent="Africa", capital="Conakry", currency="Guinean Franc", population="12 million")
GUINEA_BISSAU = Country(
    name="Guinea-Bissau", continent="Africa", capital="Bissau", currency="CFA Franc BCEAO", population="2 million"
)
WORLD = FactWorld(countries=(KENYA, GUINEA, GUINEA_BISSAU))


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.add_special_tokens(list(tags.SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


CODEC = TextCodec(byte_tokenizer())


def environment(max_passage_tokens: int = 400, top_k: int = 1) -> SearchEnvironment:
    return SearchEnvironment(CODEC, WORLD, top_k=top_k, max_passage_tokens=max_passage_tokens)


def prompt(question: str = "What is the capital of Kenya?", answer: str = "Nairobi") -> Prompt:
    token_ids = CODEC.encode(tags.prompt_text(question))
    return Prompt(prompt_id=PromptId("p"), token_ids=token_ids, text=question, answers=(answer,))


def trajectory(*parts: tuple[str, int], asked: Prompt | None = None) -> Trajectory:
    """From (text, spoken by the policy?) parts after the prompt."""
    start = (asked or prompt()).token_ids
    token_ids, loss_mask = list(start), [0] * len(start)
    for text, spoken in parts:
        encoded = CODEC.encode(text)
        token_ids += encoded
        loss_mask += [spoken] * len(encoded)
    return Trajectory(
        trajectory_id=TrajectoryId("t"),
        group_id=GroupId("g"),
        prompt_id=PromptId("p"),
        sample_index=0,
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        logprobs=(0.0,) * len(token_ids),
        prompt_tokens=len(start),
        versions=(VersionSegment(version=PolicyVersion(0), start=len(start), end=len(token_ids)),),
        turns=1,
        tool_returns=(),
        finish_reason=FinishReason.STOP,
        engine_history=(),
        started_s=0.0,
        finished_s=1.0,
    )
