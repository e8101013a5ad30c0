"""The one error vocabulary. A `LibraError` is a sentence for a person: it names the value, the bound and the remedy."""


class LibraError(Exception):
    """Anything Libra stops for on purpose. The command line prints the sentence and exits with `exit_code`."""

    exit_code = 2


class ConfigError(LibraError, ValueError):
    """What was asked for cannot be: a key, a value, or two values that contradict each other."""


class ModelFolderError(LibraError):
    """A model folder is missing, incomplete or of a family that Libra cannot train."""


class CheckpointError(LibraError):
    """A checkpoint is damaged, incomplete or belongs to another run."""


class ResourceError(LibraError):
    """The host or cluster lacks what the run needs: memory, ports, GPUs."""


class DeadlineError(LibraError):
    """A wait passed its deadline. The sentence says who waits for whom, since when."""

    exit_code = 3


class EngineLostError(LibraError):
    """A rollout engine died or stopped answering."""

    exit_code = 3


class TrainerLostError(LibraError):
    """A trainer rank died; the step is void and the run resumes from its checkpoint."""

    exit_code = 3


class ElasticError(LibraError):
    """The side channel between the core and a hybrid replica broke or was refused; the core goes on, the replica joins anew."""

    exit_code = 3


class SandboxLostError(LibraError):
    """A sandbox failed on its own account; whatever ran in it says nothing about the policy."""

    exit_code = 3


class RetrieverError(LibraError):
    """A retriever is down, slow or answers what it should not; the search says nothing about the policy."""

    exit_code = 3


class NumericsError(LibraError):
    """Two computations that must agree do not: silent mismatch between sampler and trainer, or a failed check."""

    exit_code = 4
