"""One turn while it is being sampled. Imports no vllm: its outputs are read by name."""

import time
from typing import Any

from libra_core.types.ids import PolicyVersion
from libra_core.types.trajectory import FinishReason, GeneratedTurn, VersionSegment


class TurnBuffer:
    """Collects the increments of one request, so that what was sampled survives an abort or a lost engine."""

    def __init__(self) -> None:
        self.abort_requested = False
        self._started_s = time.monotonic()
        self._first_token_s: float | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._cached_tokens = 0
        self._loaded_tokens: int | None = None
        self._starts: list[tuple[PolicyVersion, int]] = []
        self._finish_reason = FinishReason.ABORT
        self._spans: tuple[VersionSegment, ...] | None = None

    def add(self, output: Any, version: PolicyVersion) -> None:
        """Take one `RequestOutput` in DELTA mode; `version` is what the engine serves when it arrives."""
        completion = output.outputs[0]
        if completion.token_ids and self._first_token_s is None:
            self._first_token_s = time.monotonic() - self._started_s
            self._cached_tokens = output.num_cached_tokens or 0
        if completion.token_ids and (not self._starts or self._starts[-1][0] != version):
            self._starts.append((version, len(self._token_ids)))
        for token, row in zip(completion.token_ids, completion.logprobs or (), strict=True):
            self._token_ids.append(token)
            self._logprobs.append(row[token].logprob)
        if completion.finish_reason is not None:
            self._finish_reason = FinishReason(completion.finish_reason)
            self._take_hand_over(output.kv_transfer_params)
            self._spans = _segments(completion.weight_versions, len(self._token_ids))

    def finished(self) -> GeneratedTurn:
        """With vLLM's own version spans, which are exact."""
        return self._turn(self._finish_reason, self._spans or self._observed())

    def so_far(self) -> GeneratedTurn:
        """Versions as seen from here: a token that crossed with a publication may be labelled one version late."""
        return self._turn(FinishReason.ABORT, self._observed())

    def _take_hand_over(self, answer: dict[str, Any] | None) -> None:
        """The shared-folder connector tells what it has loaded, and what vLLM took for loaded and computed after all."""
        if answer is not None and "loaded_tokens" in answer:
            self._loaded_tokens = answer["loaded_tokens"]
            self._cached_tokens -= answer["lost_tokens"]

    def _turn(self, reason: FinishReason, versions: tuple[VersionSegment, ...]) -> GeneratedTurn:
        duration_s = time.monotonic() - self._started_s
        return GeneratedTurn(
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            finish_reason=reason,
            versions=versions,
            cached_tokens=self._cached_tokens,
            loaded_tokens=self._loaded_tokens,
            first_token_s=duration_s if self._first_token_s is None else self._first_token_s,
            duration_s=duration_s,
        )

    def _observed(self) -> tuple[VersionSegment, ...]:
        ends = [*(start for _, start in self._starts[1:]), len(self._token_ids)]
        return tuple(
            VersionSegment(version=version, start=start, end=end)
            for (version, start), end in zip(self._starts, ends, strict=False)
        )


def _segments(spans: Any, num_tokens: int) -> tuple[VersionSegment, ...]:
    segments = tuple(
        VersionSegment(version=PolicyVersion(int(span.version)), start=span.start, end=min(span.end, num_tokens))
        for span in spans or ()
    )
    return tuple(segment for segment in segments if segment.end > segment.start)
