"""What Ray gave against what the plan says."""

from libra_core.runtime.base.placement import Whereabouts, placement_faults


def at(node: str, *devices: str, slots: float = 1.0) -> Whereabouts:
    return Whereabouts(node=node, devices=devices, slots=slots)


def test_groups_inside_their_node_on_gpus_of_their_own_have_no_fault() -> None:
    groups = {"trainer group 0": [at("a", "0"), at("a", "1")], "engine-0": [at("b", "0", "1", slots=2.0)]}
    assert placement_faults(groups, slots_by_node={"a": 2.0, "b": 2.0}) == []


def test_a_group_over_two_nodes_is_named() -> None:
    (fault,) = placement_faults({"trainer group 0": [at("a", "0"), at("b", "0")]}, slots_by_node={"a": 1.0, "b": 1.0})
    assert fault == "trainer group 0 spans nodes a, b"


def test_a_gpu_used_twice_is_named_with_its_users() -> None:
    groups = {"engine-0": [at("a", "3")], "replica hybrid-0": [at("a", "3")]}
    assert placement_faults(groups, slots_by_node={"a": 8.0}) == ["GPU 3 of node a is used by engine-0, replica hybrid-0"]


def test_more_slots_than_a_node_has_are_counted() -> None:
    groups = {"engine-0": [at("a")], "engine-1": [at("a")]}
    assert placement_faults(groups, slots_by_node={"a": 1.0}) == ["node a has 1 devices, but actors hold 2"]
