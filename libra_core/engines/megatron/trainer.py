"""One rank of the training world, as a plain synchronous object."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from libra_core.engines.broadcast import BroadcastGroup, join_group, send_all
from libra_core.engines.device_clock import device_time_s
from libra_core.engines.hf_layout import hf_tensors
from libra_core.engines.megatron import checkpoint, convert, cpu_shim, export
from libra_core.engines.megatron.accumulation import Accumulator, OpenStep
from libra_core.engines.megatron.exchange import CoreExchange
from libra_core.engines.megatron.export import ExportReport, Metadata
from libra_core.engines.megatron.micro_batch import build_micro_batch
from libra_core.engines.megatron.model import build_model, build_policy, learning_rate, transformer_config
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.megatron.step import score
from libra_core.engines.megatron.world import close_world, open_world
from libra_core.engines.model_folder import DecoderShape, check_divides, read_model_facts
from libra_core.errors import ConfigError, ResourceError
from libra_core.types.batch import AccumulationReport, StepContributions, TrainingBatch, TrainingSequence
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.reports import UpdateReport


class MegatronTrainer:
    """Trains one policy together with the other ranks of its world.

    Every public method but `close` and `export_metadata` is collective: all ranks call it, in the same order, with the same
    arguments, and all get the same answer unless the method says otherwise. A rank that raises leaves the others to time out
    after `collective_timeout_s`; the world is then void and the run resumes from its checkpoint.

    A step is `begin_step`, any number of `accumulate`, `finish_step`; `update` is all of them in one call. `accumulate` waits for
    the ranks of its own replica only, so replicas may be at different parts; `finish_step` waits for all ranks. The partial sum
    lives in the gradient buffers alone: exports, scores and checkpoints between the calls neither see nor disturb it.
    """

    def __init__(self, spec: TrainerSpec) -> None:
        """Join the world, build this rank's part and load the weights of `spec.model_path`; blocks until all ranks are there."""
        if spec.device == "cpu":
            cpu_shim.install()
            torch.set_num_threads(1)
        self.spec = spec
        self.facts = read_model_facts(spec.model_path)
        check_divides(self.facts, layout=spec.training.layout)
        torch.manual_seed(spec.seed)
        self.progress = checkpoint.PolicyProgress(version=PolicyVersion(0))
        self._step: OpenStep | None = None
        self.contributions: StepContributions | None = None
        """Of the step that was finished last by this process."""
        self._broadcast_group: BroadcastGroup | None = None
        self.exchange: CoreExchange | None = None
        self.world = open_world(spec)
        try:
            self.model = build_policy(self.facts, spec)
            convert.load_hf(self.model.module, self.facts, spec.model_path)
            self.model.optimizer.reload_model_params()
            self.exchange = CoreExchange(spec.elastic, self.world, self.model) if spec.elastic is not None else None
            parts = {"world": self.world, "model": self.model, "reference": _build_reference(self.facts, spec)}
            self.accumulator = Accumulator(spec=spec, exchange=self.exchange, **parts)
        except BaseException:
            self.close()
            raise

    @property
    def policy_version(self) -> PolicyVersion:
        """Number of updates applied, skipped ones included."""
        return self.progress.version

    def update(self, batch: TrainingBatch) -> UpdateReport:
        """One optimizer step, or the stored report when `batch` is the one that was applied last; see the parts it is made of."""
        report = self.begin_step(batch.batch_id, batch.expected_version)
        if report is None:
            self.accumulate(batch.sequences)
            report = self.finish_step()
        return report

    def begin_step(self, batch_id: BatchId, expected_version: PolicyVersion) -> UpdateReport | None:
        """Open a step, or answer the stored report when this batch is the one that was applied last. Discards an open step.

        Raises:
            ConfigError: when the batch was made for another version of the policy.
        """
        self.discard_step()
        if self.progress.report is not None and self.progress.batch_id == batch_id:
            return self.progress.report
        if expected_version != self.policy_version:
            raise ConfigError(
                f"batch {batch_id} updates policy version {expected_version}, but the trainer holds version "
                f"{self.policy_version}; take the batch of that step, or resume from the matching checkpoint"
            )
        self._step = self.accumulator.open(batch_id, self.policy_version)
        return None

    def accumulate(self, sequences: tuple[TrainingSequence, ...]) -> AccumulationReport:
        """Add the gradient of a part of the batch: any groups, in any order, each once. A call that raises discards the step.

        Replicas do not wait for each other here, and a part may be too small to give each of them a sequence.

        Raises:
            ConfigError: when no step is open.
        """
        step = self._take_step("accumulate")
        report = self.accumulator.add(step, sequences)
        self._step = step
        return report

    def resolve_step(self) -> tuple[int, ...]:
        """Wait for hybrid replicas before `finish_step` does; at most their deadline, and not at all without any.

        Returns the numbers, in the order of accumulation, of sequences whose replica was lost. Given to `accumulate` again they
        are trained in this step by the core alone, else they are in no step yet.

        Raises:
            ConfigError: when no step is open.
        """
        step = self._take_step("resolve_step")
        lost = self.accumulator.collect_hybrids(step)
        self._step = step
        return lost

    def finish_step(self) -> UpdateReport:
        """Divide the sums by the global count once and apply them. The step is closed afterwards, also when this raises.

        A batch without learning signal leaves the weights alone, but version and learning rate advance, so that versions count
        steps. Times are sums over the parts, of the slowest rank; waiting between parts is in none of them.

        Raises:
            ConfigError: when no step is open.
            NumericsError: when the loss is not finite; the weights are unchanged.
        """
        step = self._take_step("finish_step")
        rate = learning_rate(self.spec.training.optimizer, self.policy_version)
        report = self.accumulator.finish(step, learning_rate=rate)
        self.progress = checkpoint.PolicyProgress(
            version=report.policy_version,
            adam_steps=self.progress.adam_steps + (not report.skipped),
            batch_id=step.batch_id,
            report=report,
        )
        if self.exchange is not None:
            self.exchange.publish(report.policy_version, report.grad_norm, self.progress.adam_steps)
        self.contributions = _contributions_of(step, self.exchange, self.world.dp_size)
        return report

    def discard_step(self) -> None:
        """Forget the open step, if there is one; its batch can be begun again and nothing is counted twice.

        Hybrid replicas that took part in it have to join anew when it is.
        """
        self._step = None

    def score_tokens(self, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        """Log-prob of token i given the tokens before it, at temperature 1; position 0 has none and gets 0.0."""
        if len(token_ids) < 2:
            return (0.0,) * len(token_ids)
        everything = TrainingSequence(
            token_ids=token_ids,
            loss_mask=(1,) * len(token_ids),
            logprobs=(0.0,) * len(token_ids),
            advantage=0.0,
            group_index=0,
        )
        micro_batch = build_micro_batch([everything], multiple_of=self.accumulator.token_multiple, device=self.world.device)
        parts = score(self.model.wrapped, [micro_batch], temperature=1.0)
        mine = self.world.reports and self.world.dp_rank == 0
        values = parts[0].tolist() if mine else [0.0] * (len(token_ids) - 1)
        total, _ = self.world.sum_and_max(values, [0.0])
        return (0.0, *total)

    def export_metadata(self) -> list[Metadata]:
        """Name, dtype and shape of every exported tensor, in the order of file and broadcast."""
        return [(name, self.spec.dtype, shape) for name, shape in hf_tensors(self.facts)]

    def export_file(self, path: str | Path) -> ExportReport:
        """Write one safetensors file with HF names (a tied head is not written); complete when rank 0 returns."""
        started = device_time_s(self.world.device)
        metadata = self.export_metadata()
        if self.world.rank == 0:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            export.write_safetensors(Path(path), metadata, self._weights())
        elif self.world.dp_rank == 0:
            self._take_part()
        return ExportReport(bytes=export.num_bytes(metadata), duration_s=device_time_s(self.world.device) - started)

    def export_hf_folder(self, path: str | Path) -> ExportReport:
        """A complete HF folder: the start model's config and tokenizer beside the current weights."""
        if self.world.rank == 0:
            export.copy_side_files(Path(self.spec.model_path), Path(path))
        return self.export_file(Path(path) / "model.safetensors")

    def open_broadcast(self, host: str, port: int, world_size: int, timeout_s: float) -> None:
        """Rank 0 listens for `world_size - 1` engine workers and becomes their source; other ranks only need to call it.

        Raises:
            ResourceError: they have not all come within `timeout_s`.
        """
        self._broadcast_group = None
        if self.world.rank == 0:
            self._broadcast_group = join_group(host, port, 0, world_size, timeout_s)

    def broadcast_weights(self) -> ExportReport:
        """Stream every tensor of `export_metadata`, in its order, to the engine workers; they must receive at the same time.

        Raises:
            ResourceError: one of them broke the group. This world is as before: its ranks gather to the end all the same.
        """
        started = device_time_s(self.world.device)
        if self.world.rank == 0:
            if self._broadcast_group is None:
                raise ResourceError("no broadcast group is open; call open_broadcast before broadcast_weights")
            send_all(self._broadcast_group, (tensor for _, tensor in self._weights()))
        elif self.world.dp_rank == 0:
            self._take_part()
        return ExportReport(bytes=export.num_bytes(self.export_metadata()), duration_s=device_time_s(self.world.device) - started)

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> str:
        """Write a sharded checkpoint that `load` continues bit for bit, in one rename; returns the folder.

        Of an open step nothing is saved: whoever resumes begins it again, and here it goes on.
        """
        checkpoint.save(Path(folder), self.model, self.progress, extra or {}, self.world)
        return str(folder)

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Continue from a checkpoint, also one of another layout; returns the `extra` it was saved with. Discards an open step.

        Raises:
            CheckpointError: when it is incomplete, damaged or of another model. The trainer is unchanged then.
        """
        self.progress, extra = checkpoint.load(Path(folder), self.model, self.world)
        self.discard_step()
        if self.exchange is not None:
            self.exchange.reset("the core loaded a checkpoint")
        return extra

    def digest(self) -> str:
        """sha256 over this replica's full HF tensors; equal over layouts and replicas when the weights are."""
        return export.digest_of(self._weights())

    def gradients(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Unclipped float32 gradients of the batch's loss by HF name; nothing is updated. For verification."""
        self._step = self.accumulator.open(batch.batch_id, self.policy_version)
        self.accumulate(batch.sequences)
        return self.step_gradients()

    def step_gradients(self) -> dict[str, Tensor]:
        """What `finish_step` would clip and apply, as `gradients` gives it; the step is discarded. For verification."""
        self.accumulator.reduce(self._take_step("step_gradients"), force_all_reduce=True)
        exported = convert.export_hf(self.model.module, self.facts, value_of=lambda parameter: parameter.main_grad)
        return {name: tensor.float().cpu().clone() for name, tensor in exported}

    def close(self) -> None:
        """Leave the world; not collective."""
        if self.exchange is not None:
            self.exchange.close()
        self._broadcast_group = None
        close_world()

    def _take_step(self, caller: str) -> OpenStep:
        """The step is open again only when the caller puts it back."""
        step, self._step = self._step, None
        if step is None:
            raise ConfigError(f"no step is open; call begin_step before {caller}")
        return step

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        return convert.export_hf(self.model.module, self.facts)

    def _take_part(self) -> None:
        """The collectives of an export whose tensors another rank of this replica writes."""
        for _ in self._weights():
            pass


def _contributions_of(step: OpenStep, exchange: CoreExchange | None, core_replicas: int) -> StepContributions:
    trained = tuple(number for replica in sorted(step.trained) for number in step.given[replica])
    if exchange is None:
        return StepContributions(version=step.version, trained=trained)
    last = exchange.last
    return StepContributions(
        version=step.version,
        trained=trained,
        counted=tuple(sorted(last.counted)),
        dropped=last.dropped,
        hybrid_tokens=sum(step.loads[replica] for replica in step.trained if replica >= core_replicas),
        waited_s=last.waited_s,
        stall_s=last.stall_s,
    )


def _build_reference(facts: DecoderShape, spec: TrainerSpec) -> torch.nn.Module | None:
    """Frozen start weights for the KL penalty; only the model folder holds them, so that a resumed run finds them again."""
    if spec.training.loss.kl_coefficient == 0:
        return None
    reference = build_model(facts, transformer_config(facts, spec))
    convert.load_hf(reference, facts, spec.model_path)
    return reference.eval().requires_grad_(False)
