"""One rank of the training world, as a plain synchronous object."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from libra_core.engines.broadcast import BroadcastGroup, join_group
from libra_core.engines.hf_layout import hf_tensors
from libra_core.engines.megatron import checkpoint, convert, cpu_shim, export, step
from libra_core.engines.megatron.accumulation import Accumulator
from libra_core.engines.megatron.export import ExportReport, Metadata
from libra_core.engines.megatron.micro_batch import build_micro_batch
from libra_core.engines.megatron.model import build_model, build_policy, learning_rate, transformer_config
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.megatron.world import close_world, open_world
from libra_core.engines.model_folder import check_divides, read_model_facts
from libra_core.errors import ConfigError, ResourceError
from libra_core.types.batch import TrainingBatch, TrainingSequence
from libra_core.types.ids import PolicyVersion
from libra_core.types.reports import UpdateReport


class MegatronTrainer:
    """Trains one policy together with the other ranks of its world.

    Every public method but `close` and `export_metadata` is collective: all ranks call it, in the same order, with the same
    arguments, and all get the same answer unless the method says otherwise. A rank that raises leaves the others to time out
    after `collective_timeout_s`; the world is then void and the run resumes from its checkpoint.
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
        self.progress = checkpoint.Progress(version=PolicyVersion(0))
        self._broadcast_group: BroadcastGroup | None = None
        self.world = open_world(spec)
        try:
            self.model = build_policy(self.facts, spec)
            convert.load_hf(self.model.module, self.facts, spec.model_path)
            self.model.optimizer.reload_model_params()
            self._accumulator = Accumulator(spec=spec, world=self.world, model=self.model, reference=self._build_reference())
        except BaseException:
            close_world()
            raise

    @property
    def policy_version(self) -> PolicyVersion:
        """Number of updates applied, skipped ones included."""
        return self.progress.version

    def update(self, batch: TrainingBatch) -> UpdateReport:
        """One optimizer step, or the stored report when `batch` is the one that was applied last.

        A batch without learning signal leaves the weights alone, but version and learning rate advance, so that versions count
        steps.

        Raises:
            ConfigError: when the batch was made for another version of the policy.
            NumericsError: when the loss is not finite; the weights are unchanged.
        """
        stored = self.progress.report
        if stored is not None and self.progress.batch_id == batch.batch_id:
            return stored
        if batch.expected_version != self.policy_version:
            raise ConfigError(
                f"batch {batch.batch_id} updates policy version {batch.expected_version}, but the trainer holds version "
                f"{self.policy_version}; take the batch of that step, or resume from the matching checkpoint"
            )
        rate = learning_rate(self.spec.training.optimizer, self.policy_version)
        report = self._accumulator.update(batch, version=self.policy_version, learning_rate=rate)
        self.progress = checkpoint.Progress(
            version=report.policy_version,
            adam_steps=self.progress.adam_steps + (not report.skipped),
            batch_id=batch.batch_id,
            report=report,
        )
        return report

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
        micro_batch = build_micro_batch([everything], multiple_of=self._accumulator.token_multiple, device=self.world.device)
        parts = step.score(self.model.wrapped, [micro_batch], temperature=1.0)
        mine = self.world.reports and self.world.dp_rank == 0
        values = parts[0].tolist() if mine else [0.0] * (len(token_ids) - 1)
        total, _ = self.world.sum_and_max(values, [0.0])
        return (0.0, *total)

    def export_metadata(self) -> list[Metadata]:
        """Name, dtype and shape of every exported tensor, in the order of file and broadcast."""
        return [(name, self.spec.dtype, shape) for name, shape in hf_tensors(self.facts)]

    def export_file(self, path: str | Path) -> ExportReport:
        """Write one safetensors file with HF names (a tied head is not written); complete when rank 0 returns."""
        started = perf_counter()
        metadata = self.export_metadata()
        if self.world.rank == 0:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            export.write_safetensors(Path(path), metadata, self._weights())
        elif self.world.dp_rank == 0:
            self._take_part()
        return ExportReport(bytes=export.num_bytes(metadata), duration_s=perf_counter() - started)

    def export_hf_folder(self, path: str | Path) -> ExportReport:
        """A complete HF folder: the start model's config and tokenizer beside the current weights."""
        if self.world.rank == 0:
            export.copy_side_files(Path(self.spec.model_path), Path(path))
        return self.export_file(Path(path) / "model.safetensors")

    def open_broadcast(self, host: str, port: int, world_size: int) -> None:
        """Rank 0 listens for `world_size - 1` engine workers and becomes their source; other ranks only need to call it."""
        if self.world.rank == 0:
            timeout_s = self.spec.training.collective_timeout_s
            self._broadcast_group = join_group(host, port, 0, world_size, timeout_s)

    def broadcast_weights(self) -> ExportReport:
        """Stream every tensor of `export_metadata`, in its order, to the engine workers; they must receive at the same time."""
        started = perf_counter()
        if self.world.rank == 0:
            if self._broadcast_group is None:
                raise ResourceError("no broadcast group is open; call open_broadcast before broadcast_weights")
            for _, tensor in self._weights():
                self._broadcast_group.broadcast(tensor.contiguous())
        elif self.world.dp_rank == 0:
            self._take_part()
        return ExportReport(bytes=export.num_bytes(self.export_metadata()), duration_s=perf_counter() - started)

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> str:
        """Write a sharded checkpoint that `load` continues bit for bit, in one rename; returns the folder."""
        checkpoint.save(Path(folder), self.model, self.progress, extra or {}, self.world)
        return str(folder)

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Continue from a checkpoint, also one of another layout; returns the `extra` it was saved with.

        Raises:
            CheckpointError: when it is incomplete, damaged or of another model. The trainer is unchanged then.
        """
        self.progress, extra = checkpoint.load(Path(folder), self.model, self.world)
        return extra

    def digest(self) -> str:
        """sha256 over this replica's full HF tensors; equal over layouts and replicas when the weights are."""
        return export.digest_of(self._weights())

    def gradients(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Unclipped float32 gradients of the batch's loss by HF name; nothing is updated. For verification."""
        self._accumulator.run(batch.sequences, force_all_reduce=True)
        exported = convert.export_hf(self.model.module, self.facts, value_of=lambda parameter: parameter.main_grad)
        gradients = {name: tensor.float().cpu().clone() for name, tensor in exported}
        self._accumulator.clear()
        return gradients

    def close(self) -> None:
        """Leave the world; not collective."""
        self._broadcast_group = None
        close_world()

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        return convert.export_hf(self.model.module, self.facts)

    def _take_part(self) -> None:
        """The collectives of an export whose tensors another rank of this replica writes."""
        for _ in self._weights():
            pass

    def _build_reference(self) -> torch.nn.Module | None:
        """Frozen start weights for the KL penalty; only the model folder holds them, so that a resumed run finds them again."""
        if self.spec.training.loss.kl_coefficient == 0:
            return None
        reference = build_model(self.facts, transformer_config(self.facts, self.spec))
        convert.load_hf(reference, self.facts, self.spec.model_path)
        return reference.eval().requires_grad_(False)
