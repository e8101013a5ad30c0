"""Limits of the commands that a policy runs."""

from typing import Literal

from pydantic import Field

from libra_core.config.base import Section


class SandboxConfig(Section):
    """One command with all its children; a sandbox is one trajectory's private folder."""

    isolation: Literal["auto", "bubblewrap", "namespaces"] = "auto"
    """`auto` takes bubblewrap where it is installed and works, plain namespaces otherwise."""
    unsafe_local: bool = False
    """Run commands even where nothing can isolate them: they see the host's files and network."""
    container: Literal["docker", "podman"] = "docker"
    """Runs instances that name an image."""
    container_start_s: float = Field(default=300.0, gt=0)
    """Deadline of starting a container, fetching its image included."""
    open_at_once: int = Field(default=64, ge=1)
    """Trajectories with a sandbox at the same time; more wait before their first turn."""
    commands_at_once: int = Field(default=8, ge=1)
    """Commands that run at the same time on this host; more wait, for `rollout.queue_deadline_s` at most."""
    wall_s: float = Field(default=10.0, gt=0)
    cpu_s: float = Field(default=10.0, gt=0)
    memory_mib: int = Field(default=512, ge=16)
    processes: int = Field(default=64, ge=2)
    output_kib: int = Field(default=256, ge=1)
    """A command that writes more is ended."""
    file_mib: int = Field(default=32, ge=1)
    """Largest file."""
    disk_mib: int = Field(default=256, ge=1)
    """Private folder and private /tmp together."""
