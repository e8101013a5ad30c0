"""What is proposed runs, over the whole scan of models, clusters and backends."""

from support.plan_scan import require_plans_that_run, scan


def test_every_answer_and_runner_up_of_the_whole_scan_runs_and_is_a_configuration_that_validates() -> None:
    require_plans_that_run(scan(), planned_at_least=100)
