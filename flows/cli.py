"""The `libra` command: parses and checks first, loads heavy libraries after."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from flows.command_line.output import write_any_text
from flows.processes.front import ENDS_WITHIN_S, INTERRUPTED, in_front, says_the_end

Command = TypeVar("Command", bound=Callable[..., None])


def in_sentences(command: Command) -> Command:
    """A `LibraError` becomes one sentence on stderr and its exit code; only unexpected errors keep their traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        from libra_core.errors import LibraError

        try:
            command(*args, **kwargs)
        except LibraError as error:
            typer.echo(f"libra: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            if not says_the_end():
                typer.echo("libra: interrupted; everything that was started is closed", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return cast(Command, wrapped)


app = typer.Typer(
    help="Agentic RL post-training with rollout and training kept in balance.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="PlanComparison at configurations.", no_args_is_help=True)
docs_app = typer.Typer(help="Documentation made from the code.", no_args_is_help=True)
verify_app = typer.Typer(help="Checks that two computations agree.", no_args_is_help=True)
costs_app = typer.Typer(help="The cost evaluator.", no_args_is_help=True)
data_app = typer.Typer(help="Data sets of the workloads.", no_args_is_help=True)
env_app = typer.Typer(help="Workloads without a model.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(costs_app, name="costs")
model_app = typer.Typer(help="Small real models.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.add_typer(data_app, name="data")
app.add_typer(env_app, name="env")
app.add_typer(docs_app, name="docs")
app.add_typer(verify_app, name="verify")

QUICKSTART = Path("configs/experiment/quickstart.yaml")
ConfigArgument = Annotated[Path, typer.Argument(help="YAML file of the run, or the name of one that Libra ships.")]
OptionalConfig = Annotated[
    Path | None,
    typer.Argument(
        help="YAML of the run, or the name of one that Libra ships; with --resume the run's own, with --set alone the quickstart."
    ),
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Change a value, for example training.steps=10. Repeatable.")]
JsonOption = Annotated[bool, typer.Option("--json", help="End stdout with one JSON object; logs go to stderr.")]


def _above_zero(value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise typer.BadParameter(f"{value:g} is not a finite number above 0")
    return value


@app.command()
@in_sentences
def train(
    config: OptionalConfig = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    resume: Annotated[Path | None, typer.Option(help="Run folder to go on with, or one of its checkpoints/step-….")] = None,
) -> None:
    """Train as the configuration says, and sum the run up."""
    from flows.command_line.commands import run_training
    from flows.parameters import TrainParameters
    from libra_core.errors import ConfigError

    if config is None and not resume and not overrides:
        raise ConfigError(
            "name a configuration, for example `libra train quickstart`; only with --set or --resume it may be left out"
        )
    parameters = TrainParameters(
        config=str(config or (_own_configuration(resume) if resume else QUICKSTART)),
        overrides=overrides or [],
        resume=str(resume) if resume else None,
    )
    status = run_training(parameters, as_json=as_json)
    if status:
        raise typer.Exit(status)


def _own_configuration(resume: Path) -> Path:
    """What the run was started with, overrides included."""
    from libra_core.config.runtime import RunConfig
    from libra_core.errors import ConfigError

    folder = RunConfig(resume=str(resume)).resumed_folder
    if folder is None or not (folder / "config.yaml").is_file():
        raise ConfigError(
            f"{resume} is no run folder: no config.yaml lies in {folder}; name a run folder, or its configuration too"
        )
    return folder / "config.yaml"


@app.command()
@in_sentences
def doctor(config: ConfigArgument = QUICKSTART, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Look at everything that a run needs, before it is started; a line each, exit status 0 or 2."""
    from flows.command_line.doctor import run_doctor

    status = run_doctor(config, overrides or [], as_json=as_json)
    if status:
        raise typer.Exit(status)


@app.command()
@in_sentences
def stop(
    run: Annotated[Path | None, typer.Argument(help="Run folder; without it the newest one that runs.")] = None,
    root: Annotated[Path, typer.Option(help="Where run folders lie.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Ask a training to save a checkpoint after the iteration that it is in, and to end with exit status 75."""
    from flows.stopping import run_stop

    run_stop(run, root, as_json=as_json)


@app.command()
@in_sentences
def plan(
    config: ConfigArgument = QUICKSTART,
    overrides: SetOption = None,
    history: Annotated[Path | None, typer.Option(help="JSONL of finished trajectories to plan for.")] = None,
    layout: Annotated[
        list[str] | None, typer.Option(help="Forecast this one too: a file of layout keys, or training.layout.dp=2. Repeatable.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Write the plan here; `libra train --set plan=FILE` runs it.")] = None,
    as_json: JsonOption = False,
    explain: Annotated[bool, typer.Option("--explain", help="List what was cut and why.")] = False,
) -> None:
    """Choose split, training layout and engines for a cluster, with a forecast; starts nothing."""
    from flows.command_line.plan import run_plan

    run_plan(config, overrides or [], history=history, layout=layout or [], write=write, as_json=as_json, explain=explain)


@app.command("route-eval")
@in_sentences
def route_eval(
    files: Annotated[list[Path], typer.Argument(help="Recorded trajectories, one data set a file (JSONL, also gzipped).")],
    policy: Annotated[list[str] | None, typer.Option(help="Only this policy. Repeatable.")] = None,
    buckets: Annotated[str | None, typer.Option(help="Limits: tokens (4000,12000) or quantiles (P50,P80,P95).")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL with the text of tasks, for the embedding.")] = None,
    epochs: Annotated[int, typer.Option(help="Visits of each prompt in GRPO-like order.")] = 2,
    shuffles: Annotated[int, typer.Option(help="GRPO-like orders to average over.")] = 5,
    figure: Annotated[Path | None, typer.Option(help="Draw the regrets to this file (png, svg, pdf).")] = None,
    start: Annotated[str, typer.Option(help="Where a trajectory begins: smallest or predicted bucket.")] = "predicted",
    seed: int = 0,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded trajectories through routing policies; every one is routed before it is learnt from."""
    from flows.command_line.route_eval import run_route_eval, settings_of

    settings = settings_of(policy or [], buckets, epochs=epochs, shuffles=shuffles, start=start, seed=seed)
    run_route_eval(files, settings, prompts=prompts, figure=figure, as_json=as_json)


@app.command()
@in_sentences
def decisions(run: Annotated[Path, typer.Argument(help="Run folder.")], as_json: JsonOption = False) -> None:
    """Print every replanning round of a run: what was compared, decided, and gained."""
    from flows.command_line.decisions import run_decisions

    run_decisions(run, as_json=as_json)


@app.command()
@in_sentences
def compare(
    study: Annotated[Path, typer.Argument(help="YAML file of the study.")] = Path("configs/study/48gpu.yaml"),
    systems: Annotated[str, typer.Option(help="Only these systems, for example libra,dynamic.")] = "",
    workloads: Annotated[str, typer.Option(help="Only these workloads, for example search_r1,r2e_gym.")] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="Paired seeds.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps of each run; at least 8 of a simulated one.")] = None,
    staleness: Annotated[int | None, typer.Option(min=0, help="The bound η, the same for all.")] = None,
    sweeps: Annotated[str, typer.Option(help="Only these sweeps of the study; none for none.")] = "",
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare systems: simulated on a cluster that need not be there, or, for a file that names baselines, by real trainings."""
    from flows.command_line.compare import run_compare
    from flows.study_parameters import CompareParameters

    chosen = {
        "systems": [name for name in systems.split(",") if name],
        "workloads": [name for name in workloads.split(",") if name],
        "sweeps": [name for name in sweeps.split(",") if name],
    }
    given = {"study": str(study), "seeds": seeds, "steps": steps, "staleness": staleness, "overrides": overrides or []}
    run_compare(CompareParameters.model_validate(given | chosen), as_json=as_json)


@app.command()
@in_sentences
def whatif(
    source: Annotated[Path, typer.Argument(help="Folder of a study or of a training run, or a study's YAML file.")],
    gpus: Annotated[str, typer.Option(help="48, a list 16,32,64, or a range 8..256.")] = "8..256",
    system: Annotated[str, typer.Option(help="A system of the study.")] = "libra",
    workload: Annotated[str, typer.Option(help="A workload of the study; the first one unless named.")] = "",
    target_hours: Annotated[
        float | None, typer.Option(help="Find the cheapest cluster that takes 1000 steps in so long.", callback=_above_zero)
    ] = None,
    target_tokens_per_s: Annotated[
        float | None, typer.Option(help="Find the cheapest cluster that is at least so fast.", callback=_above_zero)
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a study or a run on other clusters: tokens/s and hours by GPUs, the knee, the cheapest that meets a goal."""
    from flows.command_line.whatif import WhatIfParameters, run_whatif

    given = {"source": source, "gpus": gpus, "system": system, "workload": workload, "overrides": overrides or []}
    goals = {"target_hours": target_hours, "target_tokens_per_s": target_tokens_per_s}
    run_whatif(WhatIfParameters.model_validate(given | goals), as_json=as_json)


@app.command("warm-start")
@in_sentences
def warm_start(
    config: ConfigArgument = QUICKSTART,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    write_package: Annotated[bool, typer.Option("--write-package", help="For developers: remake the shipped policy.")] = False,
) -> None:
    """Make the embedded policy that training starts from, unless it is cached or comes with Libra."""
    from flows.command_line.commands import run_warm_start

    run_warm_start(config, overrides or [], as_json=as_json, write_package=write_package)


@app.command()
@in_sentences
def serve(config: ConfigArgument = QUICKSTART) -> None:
    """Serve the deployments `libra-train` and `libra-compare` until interrupted; runs start from Prefect's UI or command line."""
    from flows.command_line.commands import run_serve

    run_serve(config)


@app.command()
@in_sentences
def ui(root: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs")) -> None:
    """Show past and running trainings: Prefect on port 4200, MLflow on port 5000, both on loopback only."""
    from flows.command_line.ui import show_until_interrupted

    show_until_interrupted(root)


@verify_app.command("numerics")
@in_sentences
def verify_numerics(as_json: JsonOption = False) -> None:
    """Compare engine, trainer and reference implementation on real weights."""
    from flows.command_line.commands import run_verify_numerics

    run_verify_numerics(as_json=as_json)


@app.command()
@in_sentences
def calibrate(
    quick: Annotated[bool, typer.Option("--quick", help="Coarser grid, one rank only: about two minutes.")] = False,
    output: Annotated[Path, typer.Option(help="Profile to write.")] = Path("runs/calibration.yaml"),
    as_json: JsonOption = False,
) -> None:
    """Measure this host's engine and trainer; write the laws of their steps, with the errors on what they were not fitted on."""
    from flows.command_line.costs import run_calibrate

    run_calibrate(quick=quick, output=output, as_json=as_json)


@costs_app.command("validate")
@in_sentences
def costs_validate(
    profile: Annotated[str, typer.Argument(help="a100, a800, h100, h200, cpu, or the YAML of a device.")],
    data: Annotated[Path, typer.Argument(help="Kernel folder, or CSV of an end-to-end, training or engine measurement.")],
    as_json: JsonOption = False,
) -> None:
    """Print the error of the forecasts against measurements."""
    from flows.command_line.costs import run_validate

    run_validate(profile, data, as_json=as_json)


@data_app.command("prepare")
@in_sentences
def data_prepare(
    workload: Annotated[str, typer.Argument(help="search_r1, r2e_gym or dapo_math.")],
    source: Annotated[list[Path] | None, typer.Option(help="File of the public data set. Repeatable.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="Passages of search_r1, to be indexed.")] = None,
    folder: Annotated[Path, typer.Option(help="Where data and manifest are kept.")] = Path("runs/data"),
    as_json: JsonOption = False,
) -> None:
    """Check files and keep them with checksums; without a source, make the workload's embedded tasks."""
    from flows.command_line.environments import run_data_prepare

    run_data_prepare(workload, sources=source or [], corpus=corpus, folder=folder, as_json=as_json)


@model_app.command("fetch")
@in_sentences
def model_fetch(
    name: Annotated[str, typer.Argument(help="smollm2-135m.")],
    folder: Annotated[Path, typer.Option(help="Where model folders are kept.")] = Path("runs/models"),
    as_json: JsonOption = False,
) -> None:
    """Download a small real model and write it as an HF folder for `model.path`."""
    from flows.command_line.models import run_model_fetch

    run_model_fetch(name, folder=folder, as_json=as_json)


@env_app.command("check")
@in_sentences
def env_check(
    workload: Annotated[str, typer.Argument(help="search_r1, r2e_gym, dapo_math, or the YAML file of a run.")],
    overrides: SetOption = None,
    agent: Annotated[str, typer.Option(help="scripted, random or garbage.")] = "scripted",
    episodes: Annotated[int, typer.Option(min=1)] = 200,
    at_once: Annotated[int, typer.Option(min=1, help="Episodes open at the same time.")] = 64,
    as_json: JsonOption = False,
) -> None:
    """Play episodes with an agent that needs no model; print success, tool calls and timings."""
    from flows.command_line.environments import run_env_check

    run_env_check(workload, overrides or [], agent=agent, episodes=episodes, at_once=at_once, as_json=as_json)


@config_app.command("show")
@in_sentences
def config_show(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Print the complete configuration with every default filled in."""
    from libra_core.config import load_config, resolved_yaml

    typer.echo(resolved_yaml(load_config(config, overrides or [])), nl=False)


@docs_app.command("config")
@in_sentences
def docs_config() -> None:
    """Print docs/configuration.md."""
    from libra_core.config.reference import configuration_markdown

    typer.echo(configuration_markdown(), nl=False)


@docs_app.command("metrics")
@in_sentences
def docs_metrics() -> None:
    """Print docs/metrics.md."""
    from libra_core.tracking.metrics import metrics_markdown

    typer.echo(metrics_markdown(), nl=False)


_STARTS_PROCESSES = {"train", "compare", "warm-start", "serve", "ui", "calibrate", "verify", "env"}


def main() -> None:
    """Entry point of the `libra` command."""
    write_any_text()
    if _STARTS_PROCESSES.isdisjoint(sys.argv[1:2]) or "--help" in sys.argv:
        app()
    else:
        # A comparison first waits for the end of the training that it runs, which has a front as patient as this one.
        in_front(app, ends_within_s=(3 if sys.argv[1:2] == ["compare"] else 1) * ENDS_WITHIN_S)


if __name__ == "__main__":
    main()
