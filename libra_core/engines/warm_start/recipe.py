"""The supervised start in two parts: teach the skill with correct demonstrations, then lower its base rate with bad ones.

Mixed demonstrations from the first step on never teach the skill; stopping the correct ones early leaves a policy that is
limited by what it can do rather than by what it chooses to do, and reinforcement can only improve the choice quickly.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from libra_core.config.model import WarmStartConfig
from libra_core.engines.warm_start.demonstrations import CLEAN, Demonstration, DemonstrationMix, Demonstrator
from libra_core.engines.warm_start.imitation import Imitator
from libra_core.errors import NumericsError

Report = Callable[[str, float], None]
"""Told what is being done and the share of all work that is done, 0..1."""

_POOLED_BATCHES: Final = 8
_MIXED_RATE_SHARE: Final = 0.15
"""Learning rate of the second part relative to the first."""
_STEERING_STEPS: Final = 5
_MAX_STEERINGS: Final = 24
_SAFETY_SHARE: Final = 0.25
"""Steering aims this far inside the asked-for window, because success is measured on a sample of questions."""
_SKILL_WORK_SHARE: Final = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessWindow:
    """Where the base success must lie."""

    low: float
    high: float

    def contains(self, success: float) -> bool:
        return self.low <= success <= self.high

    def narrowed(self) -> "SuccessWindow":
        margin = (self.high - self.low) * _SAFETY_SHARE
        return SuccessWindow(low=self.low + margin, high=self.high - margin)


class WarmStartRecipe:
    """Runs both parts on one policy; batches of similar length come from one seeded stream."""

    def __init__(self, settings: WarmStartConfig, demonstrator: Demonstrator, imitator: Imitator, report: Report) -> None:
        self._settings = settings
        self._demonstrator = demonstrator
        self._imitator = imitator
        self._report = report
        self._rng = random.Random(settings.seed)

    def teach_skill(self) -> None:
        """Correct demonstrations: linear warm-up, constant, then linear decay."""
        teach(
            self._imitator,
            self._batches(CLEAN),
            self._settings.clean_steps,
            lambda loss, share: self._report(f"teaching to search and to read, loss {loss:.2f}", _SKILL_WORK_SHARE * share),
        )

    def lower_base_rate(self, measure: Callable[[], float]) -> float:
        """Mixed demonstrations until `measure` lies in the window; returns the last measurement.

        Raises:
            NumericsError: when a bounded number of corrections does not bring it there.
        """
        settings = self._settings
        window = SuccessWindow(low=settings.base_success_low, high=settings.base_success_high)
        target = window.narrowed()
        mixed = DemonstrationMix(good_share=settings.good_share, guess_share=settings.guess_share)
        self._imitate(mixed, settings.mixed_steps)
        success = measure()
        for steering in range(_MAX_STEERINGS):
            if target.contains(success):
                return success
            done = _SKILL_WORK_SHARE + (1 - _SKILL_WORK_SHARE) * steering / _MAX_STEERINGS
            self._report(f"adjusting the base success, {success:.2f} now", done)
            self._imitate(mixed if success > target.high else CLEAN, _STEERING_STEPS)
            success = measure()
        if window.contains(success):
            return success
        raise NumericsError(
            f"the warm start ends with a base success of {success:.2f}, outside {window.low} to {window.high} "
            "(model.warm_start.base_success_low, base_success_high); change good_share or raise clean_steps"
        )

    def _imitate(self, mix: DemonstrationMix, steps: int) -> None:
        mixed = self._batches(mix)
        for _ in range(steps):
            self._imitator.step(next(mixed), _MIXED_RATE_SHARE)

    def _batches(self, mix: DemonstrationMix) -> Iterator[list[Demonstration]]:
        return batches(lambda: self._demonstrator.draw(mix, self._rng), self._settings.batch_size, self._rng)


def batches(draw: Callable[[], Demonstration], size: int, rng: random.Random) -> Iterator[list[Demonstration]]:
    """Endless; demonstrations of similar length share a batch, which saves a third of the padding."""
    while True:
        pool = [draw() for _ in range(size * _POOLED_BATCHES)]
        pool.sort(key=lambda demonstration: len(demonstration.token_ids))
        pooled = [pool[start : start + size] for start in range(0, len(pool), size)]
        rng.shuffle(pooled)
        yield from pooled


def teach(imitator: Imitator, stream: Iterator[list[Demonstration]], steps: int, report: Callable[[float, float], None]) -> None:
    """`steps` steps by `schedule`; `report` is told the loss and the share that is done."""
    for step in range(steps):
        loss = imitator.step(next(stream), schedule(step, steps))
        report(loss, (step + 1) / steps)


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate: 30 steps up, then constant, the last half down to 2 %."""
    warm_up = (step + 1) / 30
    decay = (steps - step) / (steps * 0.5)
    return max(0.02, min(1.0, warm_up, decay))
