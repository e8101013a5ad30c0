"""Names for the things that flow; all are plain strings or integers on the wire."""

from typing import NewType

BatchId = NewType("BatchId", str)
"""`step-000012`: the groups that one optimizer step consumes."""
EngineId = NewType("EngineId", str)
GroupId = NewType("GroupId", str)
PolicyVersion = NewType("PolicyVersion", int)
"""Number of optimizer steps applied to the weights; 0 is the model the run started from."""
PromptId = NewType("PromptId", str)
TrajectoryId = NewType("TrajectoryId", str)
