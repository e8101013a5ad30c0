"""One real engine in a process of its own, and the seconds that batches of requests cost it."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Literal

import psutil

from libra_core.costs.measured import DecodeCell, PrefillCell
from libra_core.engines.verification.remote import RemoteObject
from libra_core.engines.vllm.spec import EngineFacts, EngineSpec, process_environment
from libra_core.errors import DeadlineError, ResourceError
from libra_core.types.trajectory import GenerationRequest

Clock = Literal["cpu", "wall"]
Job = tuple[tuple[int, ...], int]
"""Prompt and tokens to generate."""
_ENGINE = "libra_core.engines.vllm.engine:VllmEngine"
_TRIES = 3
"""On a busy host the first sequences may have ended before the last ones have come."""
_LEAD_TOKENS = 6
"""Tokens before the measured ones, during which the batch fills up."""
_TIMEOUT_S = 180.0
"""For one batch; the largest takes some 5 s on a free host."""


def clock_of(tp: int) -> Clock:
    """The ranks of one engine wait for each other spinning, so their CPU seconds would count waiting as work."""
    return "cpu" if tp == 1 else "wall"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeVisit:
    """What was measured at one batch and one mean context."""

    batch: int
    context_tokens: float
    """Of all sequences together."""
    seconds: tuple[float, ...]
    """Of single steps by the wall clock; by the CPU clock their mean alone."""


def cell_of(visits: Sequence[DecodeVisit]) -> DecodeCell:
    """The median of all that was measured at one batch and context."""
    first = visits[0]
    step_s = median(seconds for visit in visits for seconds in visit.seconds)
    return DecodeCell(batch=first.batch, context_tokens=first.context_tokens, step_s=step_s)


class EngineMeter:
    """Owns the engine process. `cpu` counts the seconds of that process and its children, whatever else the host does."""

    def __init__(self, spec: EngineSpec, *, vocab_size: int, log: Path, measured_within_s: float = inf) -> None:
        """`measured_within_s`: from the engine's start on; a measurement that would begin later is refused."""
        self.clock: Clock = clock_of(spec.tp)
        self._vocab_size = vocab_size
        self._random = random.Random(spec.seed)
        self._issued = 0
        self._name = f"engine of tp {spec.tp}"
        self._engine = RemoteObject(_ENGINE, spec, environment=process_environment(spec), log=log)
        try:
            self.facts: EngineFacts = self._engine.call("start", timeout_s=spec.start_deadline_s)
        except TimeoutError:
            self.close()
            words = log.read_text(errors="replace").split("\n")[-4:]
            raise DeadlineError(
                f"the {self._name} did not start within {spec.start_deadline_s:.0f} s; its last words: {' '.join(words).strip()}"
            ) from None
        except BaseException:
            self.close()
            raise
        self._within_s = measured_within_s
        self._last_s = time.monotonic() + measured_within_s

    def close(self) -> None:
        self._engine.close()

    def prompt(self, tokens: int) -> tuple[int, ...]:
        """Random, so that no prefix is cached yet."""
        return tuple(self._random.randrange(self._vocab_size) for _ in range(tokens))

    def seconds(self, jobs: Sequence[Job]) -> float:
        """Cost of all `jobs` sent together, until the last token. Raises `DeadlineError` when it takes too long."""
        if time.monotonic() > self._last_s:
            raise DeadlineError(f"the {self._name} was not measured within {self._within_s:.0f} s; end other work on this host")
        before = self._now()
        futures = [self._engine.submit("generate", self._request(*job)) for job in jobs]
        unfinished = wait(futures, _TIMEOUT_S, return_when=FIRST_EXCEPTION).not_done
        for future in futures:
            if future.done():
                future.result(0)
        if unfinished:
            raise DeadlineError(
                f"{len(unfinished)} of {len(jobs)} requests had no answer from the {self._name} within {_TIMEOUT_S:.0f} s; "
                "end other work on this host, or calibrate with --quick"
            )
        return self._now() - before

    def decode_step(self, batch: int, context: int, steps: int) -> DecodeCell:
        """One visit of `decode_steps` as a cell."""
        return cell_of([self.decode_steps(batch, context, steps)])

    def decode_steps(self, batch: int, context: int, steps: int) -> DecodeVisit:
        """`batch` sequences whose context grows from `context` by `steps`; prompts come from the prefix cache."""
        prompts = [self.prompt(context) for _ in range(batch)]
        self.seconds([(prompt, 1) for prompt in prompts])
        mean_context = context + _LEAD_TOKENS + steps / 2
        seconds = self._each_step(prompts, steps) if self.clock == "wall" else (self._mean_step(prompts, steps),)
        return DecodeVisit(batch=batch, context_tokens=batch * mean_context, seconds=seconds)

    def _mean_step(self, prompts: Sequence[tuple[int, ...]], steps: int) -> float:
        lead = self.seconds([(prompt, _LEAD_TOKENS) for prompt in prompts])
        whole = self.seconds([(prompt, _LEAD_TOKENS + steps) for prompt in prompts])
        return (whole - lead) / steps

    def _each_step(self, prompts: Sequence[tuple[int, ...]], steps: int) -> tuple[float, ...]:
        """By the wall clock other work of the host counts too, in a few long steps: they would move a mean by a fifth."""
        taken: list[float] = []
        for _ in range(_TRIES):
            self._engine.call("take_steps")
            self.seconds([(prompt, _LEAD_TOKENS + steps) for prompt in prompts])
            taken = [seconds for sequences, seconds in self._engine.call("take_steps") if sequences == len(prompts)]
            if len(taken) >= steps / 2:
                return tuple(taken[-steps:])
        raise ResourceError(
            f"in {_TRIES} tries the {self._name} decoded {len(prompts)} sequences together in {len(taken)} of {steps} steps or "
            "fewer; end other work on this host"
        )

    def prefill(self, tokens: int, prompts: int) -> PrefillCell:
        """One of `prompts` fresh prompts sent together."""
        seconds = self.seconds([(self.prompt(tokens), 1) for _ in range(prompts)]) / prompts
        return PrefillCell(prompt_tokens=tokens, seconds=seconds)

    def _request(self, prompt: tuple[int, ...], new_tokens: int) -> GenerationRequest:
        self._issued += 1
        return GenerationRequest(
            request_id=f"meter-{self._issued}", token_ids=prompt, max_new_tokens=new_tokens, temperature=1.0, stop_token_ids=()
        )

    def _now(self) -> float:
        if self.clock == "wall":
            return time.monotonic()
        host = psutil.Process(self._engine.process.pid)
        return sum(_on_cpu_s(process.pid) for process in (host, *host.children(recursive=True)))


def _on_cpu_s(pid: int) -> float:
    """Seconds of all threads on a CPU, to the nanosecond; `cpu_times` counts in ticks of 10 ms, a few decode steps."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
