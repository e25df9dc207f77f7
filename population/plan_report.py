"""What `graft plan` prints: the derived numbers, and what each GPU has to hold."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from population.config import RunConfig
from population.devices import devices_of, first_turns, refuse_crowded
from population.memory import GIB, DeviceNeed, device_needs, first_change_that_fits, plan_dtype
from population.plan import MemberPlan, Plan


def print_plan(console: Console, config: RunConfig, plan: Plan) -> None:
    """The counts of the run."""
    n = config.rollouts.rollouts_per_prompt
    table = Table(show_header=False, title=f"{config.name}: {plan.method}, {len(plan.members)} members")
    more = ", and what dynamic sampling adds" if config.rollouts.dynamic_sampling else ""
    rows = [
        ("problems", f"{plan.problems:,}"),
        ("samples per member and step", f"{plan.prompts_per_step} x {n} = {plan.samples_per_member:,}"),
        ("samples per step, all members", f"{plan.samples:,}"),
        (
            "updates per member and step",
            f"{plan.prompts_per_step} / {config.update.prompts_per_minibatch} = {plan.updates_per_member}",
        ),
        ("steps", f"{plan.steps:,} ({plan.steps_per_epoch:,} an epoch, {plan.epochs:.2f} epochs)"),
        ("rollouts in all", f"{plan.rollouts_total:,}{more}"),
        ("response tokens per step, at most", f"{plan.response_tokens_at_most:,}"),
        ("evaluations", f"{plan.evaluations:,} of {plan.evaluation_samples:,} samples"),
    ]
    if plan.repeats:
        rows.append(("of the best checkpoints", f"{plan.repeats:,} of {plan.repeat_samples:,} samples"))
    if plan.exchanges:
        floor = "no floor" if plan.floor is None else f"floor {plan.floor:g} on s ({plan.normaliser})"
        rows.append(("exchange", f"balance {plan.balance}, {floor}, {plan.holdout:.0%} held out"))
    rows += _turns(config, plan)
    if plan.published:
        rows.append(("counts as published, files not here yet", ", ".join(plan.published)))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_memory(console: Console, config: RunConfig, plan: Plan, gpu_memory: int | None) -> bool:
    """The members' sizes and the peak of each device; False when one does not fit into ``gpu_memory`` bytes.

    A member whose size is not known is named and left out; None judges nothing.
    """
    sizes = Table("member", "model", "parameters")
    for member in plan.members:
        sizes.add_row(member.name, member.model, _parameters(member))
    console.print(sizes)
    known = {member.name: member.decoder for member in plan.members if member.decoder is not None}
    if not known:
        return True
    cluster = _clustered(config)
    if gpu_memory is not None:
        refuse_crowded(config, devices_of(config, on_gpu=config.update.device != "cpu", clustered=cluster))
    needs = device_needs(config, known, cluster, gpu_memory)
    on_gpu = " (as on a GPU)" if config.update.dtype == config.update.device == "auto" else ""
    console.print(_needs(needs, f"memory estimate at the peak, {plan_dtype(config)}{on_gpu}", gpu_memory))
    if gpu_memory is None or all(need.fits(gpu_memory) for need in needs):
        return True
    change = first_change_that_fits(config, known, gpu_memory, cluster)
    if change is None:
        advice = "no change of the settings makes it fit; use larger GPUs, fewer members on one, or --cluster"
    else:
        largest = max(need.total for need in change[1])
        advice = f"it fits with {change[0]} (then {largest / GIB:.1f} GiB at most)"
    console.print(f"Does not fit into {gpu_memory / GIB:.1f} GiB: {advice}.", highlight=False, soft_wrap=True)
    return False


def _turns(config: RunConfig, plan: Plan) -> list[tuple[str, str]]:
    """For each GPU that members share, who goes first; `auto` is taken as a GPU."""
    devices = devices_of(config, on_gpu=config.update.device != "cpu", clustered=_clustered(config))
    sizes = {member.name: member.parameters or 0 for member in plan.members}
    rows, where = [], " (where there is one)" if config.update.device == "auto" else ""
    for device, order in first_turns(devices, sizes).items():
        first = " -> ".join(order) if all(sizes[name] for name in order) else "the largest model first"
        rows.append(
            (f"turns at {device}{where}", f"{first}; after step 1 whose answers take longest to verify goes first")
        )
    return rows


def _clustered(config: RunConfig) -> bool:
    """Whether the settings are those of a run with --cluster."""
    return config.update.ranks > 1 or config.cluster.gpus_per_rank > 0 or config.cluster.gpus_per_engine > 0


def _parameters(member: MemberPlan) -> str:
    if member.recorded:
        return "none: recorded, no model is loaded"
    return f"{member.parameters:,}" if member.parameters else "not known before the model is here"


def _needs(needs: list[DeviceNeed], title: str, gpu_memory: int | None) -> Table:
    table = Table("device", "when", "GiB", "of which", title=title)
    for need in needs:
        parts = sorted(need.parts.items(), key=lambda part: -part[1])
        name = need.name if need.count == 1 else f"{need.name} (each of {need.count})"
        share = f", {need.share:g} of a GPU" if need.share < 1 else ""
        verdict = "" if gpu_memory is None or need.fits(gpu_memory) else " !"
        listed = ", ".join(f"{part} {size / GIB:.2g}" for part, size in parts)
        table.add_row(f"{name}{share}", need.when, f"{need.total / GIB:.3g}{verdict}", listed)
    return table
