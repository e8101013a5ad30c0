"""What the rest of Libra may use of the cost evaluator. Seconds, bytes, tokens; pure; numpy and yaml only."""

from libra_core.costs.calibrated import calibrated_engines, calibrated_trainer
from libra_core.costs.facts import DeviceProfile, Fit, Grounding, LinkModel, ModelFacts, Provenance
from libra_core.costs.intervals import EngineLimits, RequestTable
from libra_core.costs.laws import EngineLaws, TrainerLaw, TrainEstimate, TrainTimeParts
from libra_core.costs.layouts import TrainingLoad, TrainingShape
from libra_core.costs.measured import MeasuredProfile, read_measured, require_software
from libra_core.costs.memory import TrainMemory
from libra_core.costs.profiles import load_device, load_model, model_from_hf
from libra_core.costs.publication import PublicationTime, publication_time
from libra_core.costs.rollout import RolloutCosts
from libra_core.costs.training import TrainingCosts

__all__ = [
    "DeviceProfile",
    "EngineLaws",
    "EngineLimits",
    "Fit",
    "Grounding",
    "LinkModel",
    "MeasuredProfile",
    "ModelFacts",
    "Provenance",
    "PublicationTime",
    "RequestTable",
    "RolloutCosts",
    "TrainEstimate",
    "TrainMemory",
    "TrainTimeParts",
    "TrainerLaw",
    "TrainingCosts",
    "TrainingLoad",
    "TrainingShape",
    "calibrated_engines",
    "calibrated_trainer",
    "load_device",
    "load_model",
    "model_from_hf",
    "publication_time",
    "read_measured",
    "require_software",
]
