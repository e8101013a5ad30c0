"""Who may start and who trains next: two staleness bounds as pure functions.

With B groups per step, bound η and slack X, admission holds the *mean* age down: while the trainer stands at version v, at
most (η + v + 1)·B groups have ever been issued. The *hard* bound is due(g) = v+η+X: the last step that may train a group
started at version v. A step takes the oldest ready groups, but no group so young that an older one would miss its due step:
for every step s' before its own, the groups due by s' must still fit into the places that are left until s'.
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
class StepWindow:
    """The step that is being filled."""

    step: int
    """Equals the trainer's version."""
    groups_per_step: int
    staleness: int
    age_slack: int = 0

    def due(self, started_version: int) -> int:
        """Last step that may train a group started at this version."""
        return started_version + self.staleness + self.age_slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Groups that the step may take at once, and the unfinished ones that keep others out."""

    chosen: tuple[int, ...]
    late: tuple[int, ...]


def select_groups(ready: Mapping[int, int], in_flight: Mapping[int, int], window: StepWindow, *, places: int) -> Selection:
    """The oldest ready groups, as many as fit without making an older group miss its due step.

    Args:
        ready: start version by group index, finished and untrained.
        in_flight: start version by group index, still running.
        places: how many groups the step still lacks.
    """
    due = {index: window.due(version) for index, version in {**in_flight, **ready}.items()}
    chosen: list[int] = []
    for index in sorted(ready, key=lambda index: (due[index], index)):
        if len(chosen) == places:
            return Selection(chosen=tuple(chosen), late=())
        left = places - len(chosen) - 1
        blocked_by = _crowded_out(due, in_flight, due[index], left=left, window=window)
        if blocked_by:
            return Selection(chosen=tuple(chosen), late=blocked_by)
        chosen.append(index)
        del due[index]
    at_limit = tuple(sorted(index for index in in_flight if due[index] <= window.step))
    return Selection(chosen=tuple(chosen), late=at_limit if len(chosen) < places else ())


def _crowded_out(
    due: Mapping[int, int], in_flight: Mapping[int, int], before: int, *, left: int, window: StepWindow
) -> tuple[int, ...]:
    """Unfinished groups that could miss their due step if the step had only `left` places, looking at steps `< before`."""
    for step in range(window.step, before):
        waiting = [index for index, last in due.items() if last <= step]
        if len(waiting) > left + (step - window.step) * window.groups_per_step:
            return tuple(sorted(index for index in waiting if index in in_flight))
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCursor:
    """Which prompts have been trained: all below `next_index` except `untrained`."""

    next_index: int
    untrained: tuple[int, ...]

    @classmethod
    def after(cls, trained: Iterable[int]) -> "PromptCursor":
        done = set(trained)
        next_index = max(done, default=-1) + 1
        return cls(next_index=next_index, untrained=tuple(i for i in range(next_index) if i not in done))

    def indices(self) -> Iterable[int]:
        """Prompts to issue, in order, without end."""
        yield from self.untrained
        index = self.next_index
        while True:
            yield index
            index += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedPrompt:
    """A prompt to start a group of."""

    index: int
    losses: int
    """Groups of it that this run has lost before."""


class PromptQueue:
    """Which prompt is issued next: in turn one that was lost with its group and a new one, as long as there are such.

    A lost one would at once meet the outage that it was lost to. It waits for the next version, and after each further loss twice
    as many versions, so that a prompt whose tools or reward never work costs ever less and is never given up.
    """

    def __init__(self, cursor: PromptCursor) -> None:
        self._fresh = iter(cursor.indices())
        self._losses: dict[int, int] = {}
        self._due: dict[int, int] = {}
        """Version from which a lost prompt is issued again."""
        self._was_lost = False
        """The one issued last."""

    def next(self, version: int) -> IssuedPrompt:
        """Does not issue a prompt again that has not been lost."""
        due = [index for index, from_version in self._due.items() if from_version <= version]
        self._was_lost = bool(due) and not self._was_lost
        index = min(due) if self._was_lost else next(self._fresh)
        self._due.pop(index, None)
        return IssuedPrompt(index=index, losses=self._losses.get(index, 0))

    def lose(self, index: int, version: int) -> None:
        """Its group came to nothing while this version was the newest."""
        self._losses[index] = losses = self._losses.get(index, 0) + 1
        self._due[index] = version + 2 ** (losses - 1)
