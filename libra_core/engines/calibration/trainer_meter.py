"""CPU seconds that parts and steps cost one rank of the real trainer. Runs in the processes of a `WorldPool`."""

import random
from collections.abc import Sequence
from time import process_time
from typing import TYPE_CHECKING

from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.types.batch import TrainingSequence
from libra_core.types.ids import BatchId

if TYPE_CHECKING:
    from libra_core.engines.megatron.trainer import MegatronTrainer

Lengths = tuple[int, ...]
_SAMPLER_LOGPROB = -6.0
"""About that of a random token of 512."""


def meter_rank(spec: TrainerSpec, batches: Sequence[Lengths], vocab_size: int) -> list[tuple[float, float]]:
    """One optimizer step per batch, in one part: seconds of forward and backward, and of all the rest. The first is warm-up.

    Collective. Counts all threads of this process on a CPU; waiting for other ranks or for a busy host is in neither number.
    """
    from libra_core.engines.megatron.trainer import MegatronTrainer  # heavy, and it patches torch: only in these processes

    trainer = MegatronTrainer(spec)
    rng = random.Random(spec.seed)
    try:
        return [_step(trainer, index, _sequences(rng, lengths, vocab_size)) for index, lengths in enumerate(batches)]
    finally:
        trainer.close()


def _step(trainer: "MegatronTrainer", index: int, sequences: tuple[TrainingSequence, ...]) -> tuple[float, float]:
    start = process_time()
    trainer.begin_step(BatchId(f"meter-{index}"), trainer.policy_version)
    opened = process_time()
    trainer.accumulate(sequences)
    added = process_time()
    trainer.finish_step()
    return added - opened, opened - start + process_time() - added


def _sequences(rng: random.Random, lengths: Lengths, vocab_size: int) -> tuple[TrainingSequence, ...]:
    """Random tokens that all enter the loss; advantages of both signs, so that no step is skipped."""
    return tuple(
        TrainingSequence(
            token_ids=tuple(rng.randrange(vocab_size) for _ in range(length)),
            loss_mask=(1,) * length,
            logprobs=(_SAMPLER_LOGPROB,) * length,
            advantage=(-1.0) ** index,
            group_index=index,
        )
        for index, length in enumerate(lengths)
    )
