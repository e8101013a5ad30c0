"""The `libra` command: parses and checks first, loads heavy libraries after."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

INTERRUPTED = 130

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
            typer.echo("libra: interrupted; everything that was started is closed", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return cast(Command, wrapped)


app = typer.Typer(
    help="Agentic RL post-training with rollout and training kept in balance.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Look at configurations.", no_args_is_help=True)
docs_app = typer.Typer(help="Documentation made from the code.", no_args_is_help=True)
verify_app = typer.Typer(help="Checks that two computations agree.", no_args_is_help=True)
costs_app = typer.Typer(help="The cost evaluator.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(costs_app, name="costs")
app.add_typer(docs_app, name="docs")
app.add_typer(verify_app, name="verify")

QUICKSTART = Path("configs/experiment/quickstart.yaml")
ConfigArgument = Annotated[Path, typer.Argument(help="YAML file of the run.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Change a value, for example training.steps=10. Repeatable.")]
JsonOption = Annotated[bool, typer.Option("--json", help="End stdout with one JSON object; logs go to stderr.")]


@app.command()
@in_sentences
def train(
    config: ConfigArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    resume: Annotated[Path | None, typer.Option(help="Run folder to continue from its newest checkpoint.")] = None,
) -> None:
    """Train as the configuration says, and sum the run up."""
    from flows.commands import run_training
    from flows.parameters import TrainParameters

    parameters = TrainParameters(config=str(config), overrides=overrides or [], resume=str(resume) if resume else None)
    run_training(parameters, as_json=as_json)


@app.command()
@in_sentences
def plan(
    config: ConfigArgument,
    overrides: SetOption = None,
    history: Annotated[Path | None, typer.Option(help="JSONL of finished trajectories to plan for.")] = None,
    as_json: JsonOption = False,
    explain: Annotated[bool, typer.Option("--explain", help="List what was cut and why.")] = False,
) -> None:
    """Choose split, training layout and engines for a cluster, with a forecast; starts nothing."""
    from flows.plan import run_plan

    run_plan(config, overrides or [], history=history, as_json=as_json, explain=explain)


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
    from flows.route_eval import run_route_eval, settings_of

    settings = settings_of(policy or [], buckets, epochs=epochs, shuffles=shuffles, start=start, seed=seed)
    run_route_eval(files, settings, prompts=prompts, figure=figure, as_json=as_json)


@app.command("warm-start")
@in_sentences
def warm_start(config: ConfigArgument = QUICKSTART, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Make the embedded policy that training starts from, unless it is cached."""
    from flows.commands import run_warm_start

    run_warm_start(config, overrides or [], as_json=as_json)


@app.command()
@in_sentences
def serve(config: ConfigArgument = QUICKSTART) -> None:
    """Serve the deployment `libra-train` until interrupted; runs are started from Prefect's UI or command line."""
    from flows.commands import run_serve

    run_serve(config)


@app.command()
@in_sentences
def ui(root: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs")) -> None:
    """Show past and running trainings: Prefect on port 4200, MLflow on port 5000, both on loopback only."""
    from flows.ui import show_until_interrupted

    show_until_interrupted(root)


@verify_app.command("numerics")
@in_sentences
def verify_numerics(as_json: JsonOption = False) -> None:
    """Compare engine, trainer and reference implementation on real weights."""
    from flows.commands import run_verify_numerics

    run_verify_numerics(as_json=as_json)


@app.command()
@in_sentences
def calibrate(
    quick: Annotated[bool, typer.Option("--quick", help="Coarser grid, one rank only: about two minutes.")] = False,
    output: Annotated[Path, typer.Option(help="Profile to write.")] = Path("runs/calibration.yaml"),
    as_json: JsonOption = False,
) -> None:
    """Measure this host's engine and trainer; write the laws of their steps, with the errors on what they were not fitted on."""
    from flows.costs import run_calibrate

    run_calibrate(quick=quick, output=output, as_json=as_json)


@costs_app.command("validate")
@in_sentences
def costs_validate(
    profile: Annotated[str, typer.Argument(help="a100, a800, h100, h200, cpu, or the YAML of a device.")],
    data: Annotated[Path, typer.Argument(help="Kernel folder, or CSV of an end-to-end, training or engine measurement.")],
    as_json: JsonOption = False,
) -> None:
    """Print the error of the forecasts against measurements."""
    from flows.costs import run_validate

    run_validate(profile, data, as_json=as_json)


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


def main() -> None:
    """Entry point of the `libra` command."""
    app()


if __name__ == "__main__":
    main()
