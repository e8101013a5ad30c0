"""Who may start and who trains next: the staleness bound as pure functions.

With B groups per step and bound η, a group started at version v trains at step v+η at the latest. Two rules keep it.
Admission never lets more than (η + v + 1)·B groups be issued while the trainer stands at version v. And a step takes the
oldest ready groups, but waits when younger ones would crowd older ones out: for every later step s' at most (s'-s)·B groups
that are due by s' may be left behind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionState:
    """Counts of groups since the run began; they survive a resume."""

    issued: int
    """Ever started, retries not counted again."""
    written_off: int
    version: int


def groups_to_issue(state: AdmissionState, *, groups_per_step: int, staleness: int, total_steps: int) -> int:
    """How many further groups may start now; never more than the whole run needs."""
    allowed = min((staleness + state.version + 1) * groups_per_step, total_steps * groups_per_step)
    return max(0, allowed + state.written_off - state.issued)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """Either the groups of the step, or the groups it still waits for."""

    chosen: tuple[int, ...]
    late: tuple[int, ...]
    """Unfinished groups, one of which must be in this step."""

    @property
    def complete(self) -> bool:
        return bool(self.chosen)


def choose_batch(
    ready: Mapping[int, int], in_flight: Mapping[int, int], *, step: int, groups_per_step: int, staleness: int
) -> BatchChoice:
    """Pick the oldest ready groups, once no group that must not be left behind is missing.

    Args:
        ready: start version by group index, finished and untrained.
        in_flight: start version by group index, still running.
        step: the step to fill, which equals the trainer's version.
    """
    oldest = sorted(ready, key=lambda index: (ready[index], index))[:groups_per_step]
    for due in range(step, step + staleness + 1):
        limit = due - staleness
        running = [index for index, version in in_flight.items() if version <= limit]
        waiting = sum(version <= limit for version in ready.values())
        taken = sum(ready[index] <= limit for index in oldest)
        if len(running) + waiting - taken > (due - step) * groups_per_step:
            return BatchChoice(chosen=(), late=tuple(sorted(running)))
    return BatchChoice(chosen=tuple(oldest) if len(oldest) == groups_per_step else (), late=())


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCursor:
    """Which prompts have been trained: all below `next_index` except `untrained`."""

    next_index: int
    untrained: tuple[int, ...]

    @classmethod
    def after(cls, trained: Iterable[int], written_off: Iterable[int] = ()) -> "PromptCursor":
        done = set(trained) | set(written_off)
        next_index = max(done, default=-1) + 1
        return cls(next_index=next_index, untrained=tuple(i for i in range(next_index) if i not in done))

    def indices(self) -> Iterable[int]:
        """Prompts to issue, in order, without end."""
        yield from self.untrained
        index = self.next_index
        while True:
            yield index
            index += 1
