from dataclasses import replace

from libra_core.costs.api import Fit, TrainingShape
from libra_core.planning.problem import Cluster, ModelShape
from libra_core.planning.training_tree import Cuts, best_leaf, leaves, of_fullest_replica, shape_of
from support.planning import PlainTrainer, problem


def tree(num_gpus: int, **changes: object):
    asked = problem(64, 96, **changes)
    cuts = Cuts()
    load = asked.lengths.training_load(asked.regime.batch, asked.regime.longest_tokens)
    return asked, load, cuts, list(leaves(asked, num_gpus, load, cuts))


def test_every_leaf_uses_exactly_the_gpus_and_divides_the_layers() -> None:
    asked, _, _, found = tree(24)
    assert found
    for leaf in found:
        assert leaf.layout.num_gpus == 24
        assert asked.model.num_layers % leaf.layout.pp == 0
        assert leaf.layout.dp <= asked.regime.batch


def test_replicas_need_not_divide_the_batch_and_the_fullest_one_sets_the_pace() -> None:
    asked, load, _, found = tree(20, train_degrees=(4,), costs=replace(problem().costs, trainer=PlainTrainer(fixed_s=0.0).law))
    uneven = next(leaf for leaf in found if leaf.layout.dp == 5)
    assert load.num_sequences == 96
    even = asked.costs.trainer.estimate(shape_of(uneven.layout), load).t_train_s
    fullest = asked.costs.trainer.estimate(shape_of(uneven.layout), of_fullest_replica(load, 5)).t_train_s
    assert uneven.t_train_s == fullest
    assert even < fullest <= even * 20 / (96 / 5) * 1.0001


def test_best_leaf_is_the_fastest() -> None:
    asked, load, _, found = tree(16)
    best = best_leaf(asked, 16, load, Cuts())
    assert best is not None
    assert best.t_train_s == min(leaf.t_train_s for leaf in found)


def test_stages_are_uneven_only_where_the_run_allows_it() -> None:
    asked = problem(16, 64)
    load = asked.lengths.training_load(64, 40_960)
    even = {leaf.layout.pp for leaf in leaves(asked, 12, load, Cuts())}
    uneven = {leaf.layout.pp for leaf in leaves(replace(asked, train_shape=TrainingShape(uneven_stages=True)), 12, load, Cuts())}
    assert all(asked.model.num_layers % pp == 0 for pp in even)
    assert any(asked.model.num_layers % pp for pp in uneven)


def test_cuts_name_rule_and_example() -> None:
    _, _, cuts, _ = tree(24, costs=replace(problem().costs, trainer=PlainTrainer(state_bytes=3000e9).law))
    rules = {item.rule: item for item in cuts.pruned()}
    assert "GB per GPU" in rules["memory"].example
    assert rules["pp divides the layers"].count > 0


def test_long_pipelines_with_few_micro_batches_are_cut() -> None:
    _, _, cuts, found = tree(40, micro_batch_tokens=(65536,), lengths=problem(64, 96).lengths)
    assert "pipeline bubble" in {item.rule for item in cuts.pruned()}
    assert all(leaf.layout.pp < 40 for leaf in found)


def test_context_parallelism_only_where_nothing_else_fits() -> None:
    _, _, _, roomy = tree(16)
    assert {leaf.layout.cp for leaf in roomy} == {1}
    tight = PlainTrainer(state_bytes=16e9, gpu_bytes=1.3e9)
    _, _, _, found = tree(16, train_degrees=(1,), costs=replace(problem().costs, trainer=tight.law))
    assert {leaf.layout.cp for leaf in found} == {8}


def test_experts_are_divided_only_in_a_mixture() -> None:
    _, _, _, dense = tree(16)
    _, _, _, sparse = tree(16, model=ModelShape(num_layers=48, num_experts=128))
    assert {leaf.layout.ep for leaf in dense} == {1}
    assert {leaf.layout.ep for leaf in sparse} >= {1, 2, 8}


def test_refused_shapes_carry_the_evaluators_sentence() -> None:
    class Refusing(PlainTrainer):
        def shape_fit(self, shape: object) -> Fit:
            return Fit(fits=False, reason="tp 8 does not divide the 28 heads")

    _, _, cuts, found = tree(16, costs=replace(problem().costs, trainer=Refusing().law))
    assert found == []
    assert "28 heads" in cuts.examples["model and topology"]


def test_tp_groups_stay_inside_small_nodes() -> None:
    _, _, _, found = tree(12, cluster=Cluster(num_gpus=12, gpus_per_node=6))
    assert {leaf.layout.tp for leaf in found} <= {1, 2, 4}
    assert all(leaf.layout.tp != 4 for leaf in found), "three groups of 4 do not fit two nodes of 6"
