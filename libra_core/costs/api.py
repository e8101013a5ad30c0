"""What the rest of Libra may use of the cost evaluator. Seconds, bytes, tokens; pure; numpy and yaml only."""

from libra_core.costs.calibrated import CalibratedEngines, CalibratedTrainer
from libra_core.costs.facts import DeviceProfile, Fit, Grounding, Link, ModelFacts, Provenance
from libra_core.costs.intervals import EngineLimits, RequestTable
from libra_core.costs.layouts import TrainingLoad, TrainingShape
from libra_core.costs.measured import MeasuredProfile, MeasuredRolloutCosts, read_measured, require_software
from libra_core.costs.measured_training import MeasuredTrainingCosts
from libra_core.costs.memory import TrainMemory
from libra_core.costs.profiles import load_device, load_model, model_from_hf
from libra_core.costs.rollout import RolloutCosts, StepCoefficients, scaled
from libra_core.costs.training import TrainEstimate, TrainingCosts, TrainTimeParts, one_forward_one_backward
from libra_core.costs.transitions import TransitionCosts

__all__ = [
    "CalibratedEngines",
    "CalibratedTrainer",
    "DeviceProfile",
    "EngineLimits",
    "Fit",
    "Grounding",
    "Link",
    "MeasuredProfile",
    "MeasuredRolloutCosts",
    "MeasuredTrainingCosts",
    "ModelFacts",
    "Provenance",
    "RequestTable",
    "RolloutCosts",
    "StepCoefficients",
    "TrainEstimate",
    "TrainMemory",
    "TrainTimeParts",
    "TrainingCosts",
    "TrainingLoad",
    "TrainingShape",
    "TransitionCosts",
    "load_device",
    "load_model",
    "model_from_hf",
    "one_forward_one_backward",
    "read_measured",
    "require_software",
    "scaled",
]
