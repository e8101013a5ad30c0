"""`quickstart_elastic.yaml` under costs that a calm host of two cores showed: its drift moves the rule both ways.

Costs are those of the first, undisturbed steps of a real run; iteration times follow the planner's own law, so this shows that
the drift is large enough for the rule, not that the law is right.
"""

from dataclasses import dataclass, field
from pathlib import Path

from libra_core.config import load_config, plan_of
from libra_core.costs.api import load_model
from libra_core.planning.experience import CostBook, ErrorBook
from libra_core.planning.problem import ModelShape
from libra_core.planning.proposals import ReplanFacts, propose_in_run
from libra_core.planning.replanner import Replanner
from libra_core.planning.run_costs import run_costs
from libra_core.planning.run_profile import RunSide, problem_of_run
from libra_core.runtime.cluster.hybrid_pool import Recovery
from libra_core.types.decision import Decision, Verdict
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan
from libra_core.types.profile import RunProfile
from libra_core.types.reports import EngineWork, IterationReport
from libra_core.types.transition import Tier, Transition, TransitionCost, TransitionOutcome, Verb
from libra_core.workloads.search_r1.drift import QuestionDrift
from support.reports import iteration_report, publication_report, rollout_report, time_breakdown, update_report

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "tests" / "support" / "tiny_model.json"
CONFIG = load_config(ROOT / "configs" / "experiment" / "quickstart_elastic.yaml")
BATCH = CONFIG.rollout.groups_per_step * CONFIG.rollout.group_size
TRAIN_S_PER_TOKEN, BETWEEN_S, PUBLICATION_S = 8.5e-4, 0.8, 0.25
DECODE_RATIO, PREFILL_RATIO, DECODE_BATCH = 1.94, 1.42, 13.9
FLIP_STEPS, FLIP_S = {1: 4, 0: 5}, {1: 17.0, 0: 40.0}
"""By hybrids that train afterwards: iterations that pass meanwhile, seconds of the actions."""


@dataclass
class Host:
    """A session whose trajectories follow the configured drift."""

    active: Plan = field(default_factory=lambda: plan_of(CONFIG))
    move: Transition | None = None
    left: int = 0
    step: int = 0
    records: list[LengthRecord] = field(default_factory=list)

    def plan(self) -> Plan:
        return self.active

    def begin(self, transition: Transition) -> None:
        self.move, self.left = transition, FLIP_STEPS[transition.target.hybrids_training]

    def outcome(self) -> TransitionOutcome | None:
        if self.move is None or self.left > 0:
            return None
        self.active = self.move.target
        phases = ((Verb.START_REPLICA, FLIP_S[self.active.hybrids_training]),)
        return TransitionOutcome(plan=self.active, applied=True, phases=phases)

    def recoveries(self) -> list[Recovery]:
        return []

    def length_records(self) -> list[LengthRecord]:
        return self.records

    def sample(self) -> None:
        """Twenty kinds of trajectory stand for the batch."""
        mix = QuestionDrift(CONFIG.workload, CONFIG.rollout.groups_per_step).at(self.step * CONFIG.rollout.groups_per_step)  # type: ignore[arg-type]
        two = round(20 * mix.two_hop_share)
        one_hop = LengthRecord(
            prompt_tokens=19, generated_tokens=(8, 7), tool_tokens=(20,), tool_s=(mix.search_s,), step=self.step
        )
        two_hop = LengthRecord(
            prompt_tokens=22, generated_tokens=(7, 7, 5), tool_tokens=(19, 19), tool_s=(mix.search_s,) * 2, step=self.step
        )
        self.records = [*self.records, *[one_hop] * (20 - two), *[two_hop] * two]


def report_of(host: Host, t_iter_s: float) -> IterationReport:
    newest = [record for record in host.records if record.step == host.step]
    each = BATCH / len(newest)
    prompt, generated, tools = (
        round(each * sum(values))
        for values in (
            (record.prompt_tokens for record in newest),
            (sum(record.generated_tokens) for record in newest),
            (sum(record.tool_tokens) for record in newest),
        )
    )
    turns = sum(len(record.generated_tokens) for record in newest) / len(newest)
    rollout = rollout_report(
        host.step,
        trajectories=BATCH,
        prompt_tokens=prompt,
        generated_tokens=generated,
        tool_tokens=tools,
        mean_turns=turns,
        context_tokens=prompt + tools,
        cached_tokens=0,
    )
    tokens, hybrids = prompt + generated + tools, host.active.hybrids_training
    law = run_costs(CONFIG, load_model(str(MODEL))).engines[1]
    context = (prompt + 0.5 * (generated + tools)) / BATCH
    steps = round(generated / DECODE_BATCH)
    work = EngineWork(
        decode_s=DECODE_RATIO * steps * law.step_s(generated / steps, generated / steps * context),
        prefill_s=PREFILL_RATIO * (turns * BATCH * law.prefill_a_s + (prompt + tools) * law.prefill_b_s_per_token),
        steps=steps,
        tokens=generated,
    )
    update = update_report(
        host.step,
        tokens=tokens,
        forward_backward_s=TRAIN_S_PER_TOKEN * tokens / (1 + hybrids),
        optimizer_s=0.006,
        hybrid_replicas=hybrids,
    )
    breakdown = time_breakdown(trainer_other_s=BETWEEN_S - PUBLICATION_S, trainer_waits_publication_s=PUBLICATION_S)
    publication = publication_report(host.step + 1, total_s=PUBLICATION_S)
    return iteration_report(
        host.step, rollout=rollout, update=update, breakdown=breakdown, publication=publication, engines=work, t_iter_s=t_iter_s
    )


def t_iter_s(host: Host) -> float:
    """By the law, from the newest trajectories alone."""
    model = load_model(str(MODEL))
    truth = RunProfile(
        step=host.step,
        measured_steps=1,
        trajectories=20,
        train_s_per_token=TRAIN_S_PER_TOKEN,
        train_fixed_s=0.006,
        between_s=BETWEEN_S,
        trained_share=1.0,
        decode_ratio=DECODE_RATIO,
        prefill_ratio=PREFILL_RATIO,
        decode_batch=DECODE_BATCH,
        publication_s=PUBLICATION_S,
        t_iter_s=0.0,
    )
    side = RunSide(
        costs=run_costs(CONFIG, model),
        model=ModelShape(num_layers=model.num_layers, kv_bytes_per_token=model.kv_bytes_per_token),
        num_gpus=host.active.num_gpus,
    )
    newest = [record for record in host.records if record.step == host.step]
    facts = ReplanFacts(step=0, steps_left=1, costs=CostBook(priors={Tier.FLIP: TransitionCost()}), errors=ErrorBook())
    problem = problem_of_run(CONFIG, side, host.active, newest, truth)
    return propose_in_run(problem, host.active, facts, streamed=True)[0].current.forecast.t_iter_s


def test_the_drift_moves_the_hybrid_to_training_and_back() -> None:
    host, decisions = Host(), list[Decision]()
    model = load_model(str(MODEL))
    manager = Replanner(CONFIG, (run_costs(CONFIG, model), ModelShape.of(model)), host, host)
    for step in range(CONFIG.training.steps):
        host.step, host.left = step, host.left - 1
        host.sample()
        manager.resolve(report_of(host, t_iter_s(host)))
        if manager.is_due(step):
            decisions.append(manager.decide(manager.propose(manager.profile(step))))
            manager.apply(decisions[-1])
    switches = [(d.step, d.candidate.plan.hybrids_training, d.binding.value) for d in decisions if d.verdict is Verdict.SWITCH]
    assert [to for _, to, _ in switches] == [1, 0], switches
    (first, _, trainer_binds), (second, _, fleet_binds) = switches
    assert trainer_binds == "A"
    assert fleet_binds == "B"
    assert first < 13 <= second < 27, "before the searches are slow, and while they are"
    assert len(decisions) > len(switches), "most looks keep the plan"
