"""The graft command. Every fault a user can mend is one line on standard error and exit code 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from rich.console import Console

from population.config import RunConfig, load, with_trackers
from population.errors import ConfigError
from population.store_cli import store as store_commands
from population.user_errors import user_errors

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
db = typer.Typer(no_args_is_help=True, help="The store's database.")
app.add_typer(db, name="db")
app.add_typer(store_commands, name="store")

ConfigPath = Annotated[Path, typer.Argument(help="YAML configuration, for instance configs/demo.yaml")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a key, e.g. update.learning_rate=3e-4")
]
Overlays = Annotated[
    list[Path] | None,
    typer.Option(
        "--overlay", metavar="FILE", help="YAML laid over the configuration, e.g. a baseline of configs/overlays"
    ),
]


@app.command()
def train(
    config: ConfigPath,
    set_: Overrides = None,
    overlay: Overlays = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the newest run of this name")] = False,
    run: Annotated[str | None, typer.Option("--run", help="uid of the run to start or to resume")] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="serve the dashboard while training")] = False,
    port: Annotated[int, typer.Option(help="port of the dashboard; 0 picks a free one")] = 8501,
    tracker: Annotated[
        list[str] | None, typer.Option("--tracker", metavar="NAME", help="tensorboard, wandb, mlflow or trackio")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print nothing but errors")] = False,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="auto|ADDRESS", help="run members in actors of a Ray cluster (docs/cluster.md)"),
    ] = None,
) -> None:
    """Train a population."""
    with user_errors():
        settings = with_trackers(load(config, set_ or (), overlay or ()), tracker or ())
        _one_thread_per_member(settings)
        from population.run import train as train_run

        signal.signal(signal.SIGTERM, _interrupt)
        console = Console(quiet=quiet)
        with _dashboard(settings, port, console, wanted=dashboard) as address:
            from population.progress import Display
            from population.run import Watch

            with Display(console, quiet=quiet) as display:
                watch = Watch(display.warm_start, display.note, display.begin, display.step)
                uid = train_run(settings, watch, resume=resume, uid=run, cluster=cluster)
            _summary(console, settings, uid)
            if address and sys.stdin.isatty() and console.is_terminal:
                console.print(f"The dashboard stays at {address}; press Ctrl-C to end it.")
                with suppress(KeyboardInterrupt):
                    signal.pause()


@app.command()
def plan(
    config: ConfigPath,
    set_: Overrides = None,
    overlay: Overlays = None,
    gpu_memory: Annotated[
        float | None, typer.Option("--gpu-memory", help="GiB of one GPU; default: this machine's, if it has one")
    ] = None,
) -> None:
    """Print every derived number of a configuration before any work; exit code 1 when it cannot fit into a GPU."""
    with user_errors():
        settings = load(config, set_ or (), overlay or ())
        from population.grading import reward_service
        from population.machine import gpu_memory_of
        from population.memory import GIB
        from population.plan_report import print_memory, print_plan
        from population.run import forecast

        with reward_service(settings.rewards) as rewards:
            derived = forecast(settings, rewards, local_folders(settings))
        console = Console()
        print_plan(console, settings, derived)
        memory = gpu_memory_of() if gpu_memory is None else round(gpu_memory * GIB)
        if not print_memory(console, settings, derived, memory):
            raise typer.Exit(1)


@app.command()
def evaluate(
    config: ConfigPath,
    folder: Annotated[
        Path | None, typer.Option("--members", help="folder with one exported model per member, e.g. runs/UID/members")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="uid of a run whose best checkpoints are evaluated")] = None,
    repeats: Annotated[
        int | None,
        typer.Option(min=0, help="default: evaluation.repeats; 0: once, with the random numbers of training"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="every number, for programs")] = False,
    set_: Overrides = None,
    overlay: Overlays = None,
) -> None:
    """Evaluate exported members, or the best checkpoints of a run, on the benchmarks of a configuration."""
    with user_errors("nothing was written"):
        settings = load(config, set_ or (), overlay or ())
        if (folder is None) == (run is None):
            raise ConfigError("give --members FOLDER or --run UID, not both and not neither")
        _one_thread_per_member(settings)
        from population.evaluation import evaluate_exported, read_manifest
        from population.evaluation_report import print_evaluation

        place = folder or settings.folder / str(run) / "best"
        times = settings.evaluation.repeats if repeats is None else repeats
        records = evaluate_exported(settings, place, times)
        manifests = {member.name: read_manifest(place / member.name) for member in settings.trained}
        print_evaluation(Console(), records, manifests, settings.evaluation.k, as_json=as_json)


@app.command()
def summary(
    config: ConfigPath,
    run: Annotated[str, typer.Option("--run", help="uid, or latest")] = "latest",
    set_: Overrides = None,
    overlay: Overlays = None,
) -> None:
    """Print the closing summary of a recorded run."""
    with user_errors():
        _summary(Console(), load(config, set_ or (), overlay or ()), run)


@app.command()
def compare(
    selectors: Annotated[
        list[str],
        typer.Argument(
            metavar="[ARM=]SELECTOR...",
            help="a sweep's folder, a saved comparison (.json), a store, STORE:GLOB, or a glob over uids and names",
        ),
    ],
    store: Annotated[str, typer.Option(help="where globs without a store look")] = "sqlite:///runs/graft.db",
    baseline: Annotated[
        list[str] | None, typer.Option("--baseline", metavar="ARM", help="compare with this arm; may be repeated")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="last, best or repeats")] = "last",
    cost: Annotated[str | None, typer.Option(help="what equal cost means, e.g. cpu_seconds or rollout_tokens")] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="compare runs that did not finish too")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="every number, for programs")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="one row for each arm, member and benchmark")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="booktabs tables")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown tables")] = False,
) -> None:
    """Compare runs, or sets of seeds, side by side."""
    from population.compare import command

    with user_errors():
        wanted = command.one_format(json=as_json, csv=as_csv, latex=as_latex, markdown=as_markdown)
        found = command.compare(
            selectors,
            store=store,
            baselines=baseline or (),
            checkpoint=checkpoint,
            cost=cost,
            unfinished=unfinished,
        )
        command.show(Console(), found, wanted)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP", help="for instance configs/sweeps/demo_compare.yaml")],
    set_: Overrides = None,
    folder: Annotated[Path | None, typer.Option(help="where its runs lie; default: the sweep's own")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="runs at a time")] = 2,
    arm: Annotated[list[str] | None, typer.Option("--arm", help="only this arm; may be repeated")] = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", help="only this seed; may be repeated")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="check and list the runs, start none")] = False,
) -> None:
    """Run a grid of configurations and seeds in parallel processes and compare them. Finished runs are not repeated."""
    from population.sweep import command
    from population.sweep.spec import load_sweep

    with user_errors("the same command goes on"):
        signal.signal(signal.SIGTERM, _interrupt)
        checked = command.check(load_sweep(file, folder, set_ or ()), arm or (), seed or ())
        if plan:
            command.print_plan(Console(), checked)
        else:
            raise typer.Exit(command.run(Console(), checked, jobs))


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="uid of a recorded run, or latest")],
    store: Annotated[str, typer.Option(help="database URL of the store")] = "sqlite:///runs/graft.db",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="method, seed or a key of exchange, e.g. exchange.floor=0.7"),
    ] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="MEMBER", help="leave a member out")] = None,
    first: Annotated[int | None, typer.Option(help="first step; default: the run's first")] = None,
    last: Annotated[int | None, typer.Option(help="last step; default: the run's last")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    keep: Annotated[bool, typer.Option("--keep/--print-only", help="keep the result in the store")] = True,
) -> None:
    """Route and gate a recorded run again under other settings, without training."""
    with user_errors():
        from population.replay_command import Question, answer

        question = Question(run, tuple(set_ or ()), tuple(without or ()), first, last)
        answer(Console(), store, question, as_json=as_json, keep=keep)


@app.command()
def dashboard(
    store: Annotated[
        list[str], typer.Option(help="database URL of the store; given again: more stores, for Compare")
    ] = ["sqlite:///runs/graft.db"],  # noqa: B006 - typer copies it
    host: Annotated[str, typer.Option(help="where to listen; not loopback: --auth or --insecure")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free port")] = 8501,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="allow another address without login, or a login without encryption")
    ] = False,
    auth: Annotated[str, typer.Option(help="none, or oidc: readers log in (docs/dashboard.md)")] = "none",
    secrets: Annotated[Path, typer.Option(help="settings of --auth oidc")] = Path(".streamlit/secrets.toml"),
    allow_host: Annotated[list[str] | None, typer.Option(help="a name browsers use, for instance a proxy's")] = None,
) -> None:
    """Serve the dashboard of a store until Ctrl-C."""
    environment = {**os.environ, "GRAFT_STORE_URL": "\n".join(store)}
    command = [sys.executable, "-m", "dashboard", "--host", host, "--port", str(port)]
    command += ["--insecure"] if insecure else []
    command += ["--auth", auth, "--secrets", str(secrets)]
    command += [part for name in allow_host or () for part in ("--allow-host", name)]
    os.execve(sys.executable, command, environment)


@app.command()
def export(
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="a new folder, whole or not there at all")],
    store: Annotated[str, typer.Option(help="database URL of the store")] = "sqlite:///runs/graft.db",
    run: Annotated[str, typer.Option("--run", help="uid, or latest")] = "latest",
    page: Annotated[list[str] | None, typer.Option("--page", metavar="NAME", help="only this; may be repeated")] = None,
    steps: Annotated[str, typer.Option(metavar="A:B", help="only these steps, either end may be left out")] = ":",
    member: Annotated[
        list[str] | None, typer.Option("--member", metavar="NAME", help="draw only this member; may be repeated")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="report, tables, charts or rows; may be repeated")
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="every row of the store too")] = False,
    theme: Annotated[str, typer.Option(help="of the pictures: light or dark; the report has both")] = "light",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an earlier export")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print nothing but errors")] = False,
) -> None:
    """Write a run as one HTML report, its charts as PNG and SVG, its tables as CSV and Parquet (docs/export.md)."""
    environment = {**os.environ, "GRAFT_STORE_URL": store}
    command = [sys.executable, "-m", "dashboard.export", "--to", str(to), f"--run={run}", f"--steps={steps}"]
    command += [f"--theme={theme}", *(f"--page={name}" for name in page or ())]
    command += [f"--member={name}" for name in member or ()] + [f"--only={part}" for part in only or ()]
    command += [f"--{name}" for name, wanted in (("rows", rows), ("overwrite", overwrite), ("quiet", quiet)) if wanted]
    os.execve(sys.executable, command, environment)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="train and sample on the GPU, in under 8 minutes")] = False,
    device: Annotated[str, typer.Option("--device", help="of --gpu: cuda, or cpu to try the script itself")] = "cuda",
    report: Annotated[Path, typer.Option("--report", help="folder of --gpu's report")] = Path("runs/gpu-check"),
) -> None:
    """Say what this machine can run, and how to mend what it cannot."""
    from population import doctor as examination

    if gpu:
        from population.gpu_check.report import run

        if device not in ("cuda", "cpu"):
            raise typer.BadParameter(f"{device!r}: give cuda or cpu", param_hint="--device")
        raise typer.Exit(run(Console(), report, device=cast(Literal["cuda", "cpu"], device)))
    raise typer.Exit(examination.run(as_json))


@db.command("upgrade")
def db_upgrade(
    url: Annotated[str, typer.Argument(help="database URL of the store")],
    backup: Annotated[bool, typer.Option("--backup/--no-backup", help="keep a copy of the database first")] = True,
    folder: Annotated[
        Path | None, typer.Option("--into", help="where a PostgreSQL backup goes; default: this folder")
    ] = None,
) -> None:
    """Bring a store to this program's schema, after a backup (PostgreSQL: with pg_dump)."""
    with user_errors():
        from server.store.upgrade import upgrade

        print(upgrade(url, backup=backup, folder=folder))


def local_folders(config: RunConfig) -> dict[str, Path]:
    """The model folders that are on this machine already."""
    return {m.name: Path(m.model) for m in config.trained if Path(m.model).is_dir()}


def _one_thread_per_member(config: RunConfig) -> None:
    """OpenMP reads its thread count once, before torch is imported."""
    os.environ.setdefault("OMP_NUM_THREADS", str(config.update.threads))


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _dashboard(config: RunConfig, port: int, console: Console, *, wanted: bool) -> Iterator[str | None]:
    """Serve the dashboard beside a training run; yields its address. A port in use ends the command before any work."""
    if not wanted:
        yield None
        return
    environment = {**os.environ, "GRAFT_STORE_URL": config.store_url}
    command = [sys.executable, "-m", "dashboard", "--port", str(port), "--end-with-parent"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise typer.Exit(process.wait(timeout=30) or 2)
        console.print(f"dashboard: {address}", highlight=False)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def _summary(console: Console, config: RunConfig, uid: str) -> None:
    from population.report import print_summary
    from server.store.connections import without_password
    from server.store.reader import open_reader

    with open_reader(config.store_url) as reader:
        run = reader.run(uid)
        hints = [
            f"look again: graft dashboard --store {without_password(config.store_url)}",
        ]
        for what, place in (("trained members", "members"), ("best checkpoints", "best")):
            if (config.folder / run.uid / place).is_dir():
                hints.append(f"the {what}: {config.folder / run.uid / place}")
        if run.method != "grpo" and any(member.model.startswith("demo:") for member in run.members):
            hints.append("what the exchange is worth: make demo-compare (the same seeds without it, side by side)")
            hints.append(
                "try next: --set exchange.balance=none, --set exchange.normaliser=own, --set method=graft-no-gate"
            )
        print_summary(console, reader, run, hints)
