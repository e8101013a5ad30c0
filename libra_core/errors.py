"""The one error vocabulary. A `LibraError` is a sentence for a person: it names the value, the bound and the remedy."""

import errno
from collections.abc import Generator
from contextlib import contextmanager


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


class PreflightError(LibraError):
    """A look before the start found what the run would have ended of later; see `libra doctor`."""


class DeadlineError(LibraError):
    """A wait passed its deadline. The sentence says who waits for whom, since when."""

    exit_code = 3


class EngineLostError(LibraError):
    """A rollout engine died or stopped answering."""

    exit_code = 3


class RolloutError(LibraError):
    """Group after group was lost to tools, rewards or engines; going on would only use prompts up."""

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


class BorderError(LibraError):
    """A tool, scorer or environment handed over what its place does not take; that says nothing about the policy."""

    exit_code = 3


class PromptError(BorderError):
    """A prompt leaves no room to answer, or is none."""


class RetrieverError(LibraError):
    """A retriever is down, slow or answers what it should not; the search says nothing about the policy."""

    exit_code = 3


class NumericsError(LibraError):
    """Two computations that must agree do not: silent mismatch between sampler and trainer, or a failed check."""

    exit_code = 4


_OTHER_FOLDER = "choose a folder that this user may write"
_NO_FOLDER = "name a folder"
_SPACE = "free some space, or choose a folder elsewhere"
_OF_THE_DISK = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EACCES: _OTHER_FOLDER,
    errno.EPERM: _OTHER_FOLDER,
    errno.EROFS: _OTHER_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EISDIR: "name a file",
    errno.EEXIST: _NO_FOLDER,
    errno.ENOENT: "was it removed?",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: _OTHER_FOLDER,
    errno.EIO: "look after the disk",
    errno.ESTALE: "look after the file server",
}
"""What to do about an `OSError` of the file system; sockets and processes have other numbers."""


@contextmanager
def on_the_disk(place: object, remedy: str = "") -> Generator[None]:
    """What the file system refuses inside the block is a sentence that names the file, or `place` where the system names none.

    Raises:
        ResourceError: for an `OSError` of the file system; other errors pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        what = f"{error.strerror}; {remedy or _OF_THE_DISK[error.errno]}"
        raise ResourceError(f"cannot use {error.filename or place}: {what}") from error
