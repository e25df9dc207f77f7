"""The ``graft`` command. Every fault a user can mend is one line on standard error and exit code 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from population.config import RunConfig, load
from population.errors import ConfigError, PlacementError, RunError
from server.store.records import StoreError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
db = typer.Typer(no_args_is_help=True, help="The store's database.")
app.add_typer(db, name="db")

ConfigPath = Annotated[Path, typer.Argument(help="YAML configuration, for instance configs/demo.yaml")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a key, e.g. update.learning_rate=3e-4")
]


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn the faults a user can mend into one line and exit code 2; anything else keeps its traceback."""
    try:
        yield
    except (RunError, StoreError) as error:
        if not _mendable(error):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("interrupted; go on with --resume", file=sys.stderr)
        raise typer.Exit(130) from None


def _mendable(error: BaseException) -> bool:
    """A call that failed is as mendable as its cause: a bug inside a member keeps its traceback."""
    cause = error.__cause__
    if not isinstance(error, PlacementError) or cause is None:
        return True
    from server.rollouts.engine import EngineError  # torch is loaded by now: a member was called

    return isinstance(cause, (RunError, StoreError, EngineError, OSError))


@app.command()
def train(
    config: ConfigPath,
    set_: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the newest run of this name")] = False,
    run: Annotated[str | None, typer.Option("--run", help="uid of the run to start or to resume")] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="serve the dashboard while training")] = False,
    port: Annotated[int, typer.Option(help="port of the dashboard; 0 picks a free one")] = 8501,
    quiet: Annotated[bool, typer.Option("--quiet", help="print nothing but errors")] = False,
) -> None:
    """Train a population."""
    with user_errors():
        settings = load(config, set_ or ())
        _one_thread_per_member(settings)
        from population.run import train as train_run

        signal.signal(signal.SIGTERM, _interrupt)
        console = Console(quiet=quiet)
        with _dashboard(settings, port, console, wanted=dashboard) as address:
            from population.progress import Display
            from population.run import Watch

            with Display(console, quiet=quiet) as display:
                watch = Watch(display.warm_start, display.note, display.begin, display.step)
                uid = train_run(settings, watch, resume=resume, uid=run)
            _summary(console, settings, uid)
            if address and sys.stdin.isatty() and console.is_terminal:
                console.print(f"The dashboard stays at {address}; press Ctrl-C to end it.")
                with suppress(KeyboardInterrupt):
                    signal.pause()


@app.command()
def plan(config: ConfigPath, set_: Overrides = None) -> None:
    """Print every derived number of a configuration before any work."""
    with user_errors():
        settings = load(config, set_ or ())
        from population.plan import GIB, plan_dtype
        from population.run import plan_of, prepare
        from server.rewards import RewardService

        with RewardService(workers=settings.rewards.workers, timeout_s=settings.rewards.timeout_s) as rewards:
            derived = plan_of(prepare(settings, rewards), local_folders(settings))
        console, n = Console(), settings.rollouts.rollouts_per_prompt
        table = Table(show_header=False, title=f"{settings.name}: {derived.method}, {len(derived.members)} members")
        rows = [
            ("problems", f"{derived.problems:,}"),
            (
                "samples per member and step",
                f"{derived.prompts_per_step} x {n} = {derived.samples_per_member:,}",
            ),
            ("samples per step, all members", f"{derived.samples:,}"),
            (
                "updates per member and step",
                f"{derived.prompts_per_step} / {settings.update.prompts_per_minibatch} = {derived.updates_per_member}",
            ),
            ("steps", f"{derived.steps:,} ({derived.steps_per_epoch:,} an epoch, {derived.epochs:.2f} epochs)"),
            ("rollouts in all", f"{derived.rollouts_total:,}"),
            ("response tokens per step, at most", f"{derived.response_tokens_at_most:,}"),
            ("evaluations", f"{derived.evaluations:,} of {derived.evaluation_samples:,} samples"),
        ]
        if derived.exchanges:
            rows.append(
                (
                    "exchange",
                    f"balance {derived.balance}, floor {derived.floor:g} on s ({derived.normaliser}), "
                    f"{derived.holdout:.0%} held out",
                )
            )
        for row in rows:
            table.add_row(*row)
        console.print(table)
        on_gpu = " (as on a GPU)" if settings.update.dtype == settings.update.device == "auto" else ""
        memory = Table(
            "member",
            "model",
            "parameters",
            "memory estimate",
            title=f"memory on one device, {plan_dtype(settings)}{on_gpu}",
        )
        for member in derived.members:
            parts = member.memory or {}
            detail = (
                f"{sum(parts.values()) / GIB:.3g} GiB: " + ", ".join(f"{k} {v / GIB:.2g}" for k, v in parts.items())
                if parts
                else "not known before the model is here"
            )
            memory.add_row(member.name, member.model, f"{member.parameters:,}" if member.parameters else "–", detail)
        console.print(memory)


@app.command()
def evaluate(
    config: ConfigPath,
    folder: Annotated[
        Path, typer.Option("--members", help="folder with one exported model per member, e.g. runs/UID/members")
    ],
    set_: Overrides = None,
) -> None:
    """Evaluate exported members on the benchmarks of a configuration and print the results."""
    with user_errors():
        settings = load(config, set_ or ())
        _one_thread_per_member(settings)
        from population.evaluation import encode_benchmarks, load_benchmarks, load_exported
        from population.evaluation import evaluate as measure
        from population.report import print_evaluations
        from server.rewards import RewardService

        with ExitStack() as stack:
            service = RewardService(workers=settings.rewards.workers, timeout_s=settings.rewards.timeout_s)
            rewards = stack.enter_context(service)
            benchmarks = load_benchmarks(settings, rewards)
            if not benchmarks:
                raise ConfigError(f"{config}: evaluation.benchmarks: there are none; name one to evaluate on")
            members = stack.enter_context(load_exported(settings, folder))
            prompt_ids = encode_benchmarks(settings, folder, members, benchmarks)
            print_evaluations(Console(), measure(0, members, prompt_ids, benchmarks, rewards, settings))


@app.command()
def summary(
    config: ConfigPath,
    run: Annotated[str, typer.Option("--run", help="uid, or latest")] = "latest",
    set_: Overrides = None,
) -> None:
    """Print the closing summary of a recorded run."""
    with user_errors():
        _summary(Console(), load(config, set_ or ()), run)


@app.command()
def dashboard(
    store: Annotated[str, typer.Option(help="database URL of the store")] = "sqlite:///runs/graft.db",
    host: Annotated[str, typer.Option(help="address to listen on; only loopback is allowed")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free port")] = 8501,
    insecure: Annotated[bool, typer.Option("--insecure", help="allow another address; there is no login")] = False,
) -> None:
    """Serve the dashboard of a store until Ctrl-C."""
    environment = {**os.environ, "GRAFT_STORE_URL": store}
    command = [sys.executable, "-m", "dashboard", "--host", host, "--port", str(port)]
    command += ["--insecure"] if insecure else []
    os.execve(sys.executable, command, environment)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False) -> None:
    """Say what this machine can run, and how to mend what it cannot."""
    from population import doctor as examination

    raise typer.Exit(examination.run(as_json))


@db.command("upgrade")
def db_upgrade(url: Annotated[str, typer.Argument(help="database URL of the store")]) -> None:
    """Bring a store to this program's schema; a SQLite file is backed up first."""
    with user_errors():
        from server.store.upgrade import upgrade

        backup = upgrade(url)
        print(f"upgraded; the former file is kept as {backup}" if backup else "already of this program's schema")


def local_folders(config: RunConfig) -> dict[str, Path]:
    """The model folders that are on this machine already."""
    return {m.name: Path(m.model) for m in config.members if Path(m.model).is_dir()}


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
    from server.store.reader import open_reader

    with open_reader(config.store_url) as reader:
        run = reader.run(uid)
        hints = [
            f"look again: graft dashboard --store {config.store_url}",
        ]
        members = config.folder / run.uid / "members"
        if members.is_dir():
            hints.append(f"the trained members: {members}")
        if run.method != "grpo" and any(member.model.startswith("demo:") for member in run.members):
            hints.append("what the exchange is worth: make demo-compare (the same seeds without it, side by side)")
            hints.append(
                "try next: --set exchange.balance=none, --set exchange.normaliser=own, --set method=graft-no-gate"
            )
        print_summary(console, reader, run, hints)
