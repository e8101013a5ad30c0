"""From model facts to a Megatron GPTModel of this rank, its DDP wrapper and its optimizer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from libra_core.config.training import OptimizerConfig as AdamConfig
from libra_core.engines.megatron.layers import block_spec
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.model_folder import DecoderShape

_NO_FUSED_KERNELS = dict.fromkeys(
    (
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "bias_activation_fusion",
        "apply_rope_fusion",
        "gradient_accumulation_fusion",
        "persist_layer_norm",
        "cross_entropy_loss_fusion",
    ),
    False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """This rank's part of the policy. `module` holds the parameters; `wrapped` is what the schedules run."""

    facts: DecoderShape
    config: TransformerConfig
    module: GPTModel
    wrapped: DistributedDataParallel
    optimizer: MegatronOptimizer


def build_policy(facts: DecoderShape, spec: TrainerSpec) -> TrainedModel:
    """Model, gradient buffers and Adam of this rank; parameters are still random.

    Schedules neither reduce nor divide gradients (no overlap, no `finalize_model_grads_func`): a streamed step runs several of
    them, and which is the last is known only when the batch is whole.
    """
    config = transformer_config(facts, spec)
    module = build_model(facts, config)
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=spec.training.layout.distributed_optimizer,
    )
    inner = Float16Module(config, module) if config.bf16 else module
    wrapped = DistributedDataParallel(config, ddp_config, inner)
    optimizer = get_megatron_optimizer(_optimizer_config(spec), [wrapped])
    return TrainedModel(facts=facts, config=config, module=module, wrapped=wrapped, optimizer=optimizer)


def build_model(facts: DecoderShape, config: TransformerConfig) -> GPTModel:
    """The layers of this pipeline stage; also used for the frozen reference."""
    model = GPTModel(
        config,
        block_spec(config),
        vocab_size=facts.vocab_size,
        max_sequence_length=facts.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=facts.tied_embeddings,
        position_embedding_type="rope",
        rotary_base=facts.rope_theta,
        parallel_output=True,
    )
    return model.cuda() if torch.cuda.is_available() else model


def transformer_config(facts: DecoderShape, spec: TrainerSpec) -> TransformerConfig:
    """Variable sequence lengths travel between pipeline stages; Megatron then insists on `alltoall`, even for dense models."""
    layout = spec.training.layout
    dtype = torch.bfloat16 if spec.dtype == "bfloat16" else torch.float32
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=facts.num_layers,
        hidden_size=facts.hidden_size,
        num_attention_heads=facts.num_heads,
        num_query_groups=facts.num_kv_heads,
        kv_channels=facts.head_dim,
        ffn_hidden_size=facts.ffn_size,
        normalization="RMSNorm",
        layernorm_epsilon=facts.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=facts.qkv_bias,
        qk_layernorm=facts.qk_norm,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        sequence_parallel=layout.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        calculate_per_token_loss=True,
        deallocate_pipeline_outputs=True,
        use_cpu_initialization=spec.device == "cpu",
        **(recompute if layout.recompute else {}),
        **_NO_FUSED_KERNELS,
    )


def learning_rate(config: AdamConfig, version: int) -> float:
    """Rate of the update that turns `version` into `version + 1`: linear warm-up, then constant."""
    return config.learning_rate * min(1.0, (version + 1) / max(1, config.warmup_steps))


def _optimizer_config(spec: TrainerSpec) -> OptimizerConfig:
    adam = spec.training.optimizer
    bf16 = spec.dtype == "bfloat16"
    return OptimizerConfig(
        optimizer="adam",
        lr=adam.learning_rate,
        weight_decay=adam.weight_decay,
        adam_beta1=adam.beta1,
        adam_beta2=adam.beta2,
        clip_grad=adam.clip_grad,
        bf16=bf16,
        params_dtype=torch.bfloat16 if bf16 else torch.float32,
        use_distributed_optimizer=spec.training.layout.distributed_optimizer,
    )
