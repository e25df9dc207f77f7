"""One member's training on DeepSpeed: score, update, weights, checkpoints. CPU and GPU run the same code.

Own AdamW and packs, DeepSpeed's sharding: no op is compiled. Each optimiser step has one denominator, the token count
of the whole minibatch, known before the first backward, so micro-batches and ranks add up to the minibatch's gradient.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from population import trainer_files
from population.broadcast import Broadcaster, Meeting
from population.head import HeadOptions
from population.packing import Layout, MicroBatch, Pair, blank_batch, micro_batches
from population.processes import choose_device, engine_config, join_group
from population.scoring import LogpModel, Paths, probe, score, silence_dropout, token_logprobs
from population.updates import (
    NUMBERS,
    LoraSpec,
    Minibatch,
    MinibatchReport,
    Mismatch,
    TrainerError,
    TrainerSpec,
    TrainingResponse,
    UpdateReport,
    check_responses,
    pack_loss,
)
from population.weights import LOADING, export_model, inject_lora, load_model, load_reference, merged_tensors
from server.folders import temporary, whole_folder
from server.rollouts.engine import weights_checksum
from server.rollouts.sglang_control import Bucket
from server.rollouts.sglang_group import GroupPlace
from server.rollouts.sglang_weights import HeldWeights

__all__ = ["LoraSpec", "Trainer", "TrainerError", "TrainerSpec", "TrainingResponse", "UpdateReport"]

_TAG = "engine"

# transformers imports DeepSpeed on its own, and DeepSpeed then guesses the device, aloud.
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


class Trainer:
    """One member's model under training. One call at a time; several trainers of one process may run in threads.

    With `world` > 1 every rank is a process of its own, gets the same arguments in every call, and takes its share.
    """

    def __init__(self, spec: TrainerSpec, *, rank: int = 0, world: int = 1, rendezvous: str | None = None) -> None:
        """Load, probe and shard the model. `rendezvous`: file:// or tcp:// address at which the ranks meet.

        Raises TrainerError for a device or a group that is not there, UnsupportedModel for a family that cannot train.
        """
        self.spec, self.rank, self.world = spec, rank, world
        self.device = choose_device(spec.device)
        torch.set_num_threads(spec.threads)
        with LOADING:
            deepspeed = _deepspeed(self.device)
            join_group(spec, self.device, rank, world, rendezvous)
            hf = load_model(spec, self.device)
            dropout = silence_dropout(hf)
            rows = int(hf.get_output_embeddings().weight.shape[0])
            # A tokenizer may name more ids than the model has rows for; those are never sampled.
            self._limit = min(spec.vocab_limit or rows, rows)
            self._excluded = tuple(token for token in spec.excluded_ids if token < self._limit)
            options = HeadOptions(
                spec.logprob_chunk_tokens, spec.temperature, limit=self._limit, excluded=self._excluded
            )
            paths = probe(hf, options)
            self.notes = dropout + paths.notes
            self.layout: Layout = _layout(spec, hf, paths)
            self._cut = partial(
                micro_batches,
                layout=self.layout,
                max_tokens=spec.max_tokens_per_pack,
                share_tokens=spec.share_tokens if paths.shared else 0,
                rank=rank,
                ranks=world,
            )
            if spec.lora is not None:
                inject_lora(hf, spec.lora, spec.seed)
            self._prepare_mode(hf)
            self._model = LogpModel(hf, options, chunked_head=paths.chunked_head)
            self._initial: LogpModel | None = None
            if spec.kl_coefficient:
                # The folder holds the model the run began with, so a resumed run finds the same reference.
                initial = load_reference(spec, self.device)
                self._initial = LogpModel(initial, options, chunked_head=paths.chunked_head)
            self.parameters = sum(parameter.numel() for parameter in hf.parameters())
            shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in hf.named_parameters()]
            self._fingerprint = trainer_files.fingerprint(hf.config.model_type, shapes)
            trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
            self._optimizer = torch.optim.AdamW(
                trained, lr=spec.learning_rate, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay
            )
            self._engine: Any = deepspeed.initialize(
                model=self._model, optimizer=self._optimizer, config=engine_config(spec, world, self.device)
            )[0]
        self._prepare_mode(hf)
        self._gathered = deepspeed.zero.GatheredParameters if spec.zero_stage == 3 else None
        self._broadcaster = Broadcaster(hf, self._gathered, rank, self.device)
        self._step = 0
        self._report: UpdateReport | None = None
        self._broken = ""

    def score(self, sequences: Sequence[Pair]) -> list[NDArray[np.float32]]:
        """Log-probabilities [T_i] of (prompt ids, response ids) pairs under the current weights, in the same order."""
        self._check_ids(sequences)
        return self._gather_scores(self._forward, sequences)

    def update(self, step: int, minibatches: Sequence[Sequence[TrainingResponse]]) -> UpdateReport:
        """Population step `step` (from 1): one optimiser step per minibatch, in their order.

        The same step again returns its report without training; any other step but the next is refused. A minibatch
        whose responses all have advantage 0 still makes its optimiser step (momentum and weight decay act); one
        without a single retained response makes none, since its objective is 0/0. Raises TrainerError; after one raised
        while training, only `load` is accepted.
        """
        if self._report is not None and step == self._step:
            return self._report
        where = f"member {self.spec.member or self.spec.model_path}, step {step}"
        if self._broken:
            raise TrainerError(f"{where}: an update failed before ({self._broken}); load a checkpoint first")
        if step != self._step + 1:
            raise TrainerError(
                f"{where}: the last update was step {self._step}; the next must be step {self._step + 1}"
            )
        check_responses(minibatches, where, self._limit, self._excluded)
        learning_rate = self.spec.learning_rate_at(step)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        try:
            reports, mismatch = self._train(minibatches, where)
        except BaseException as error:
            self._broken = str(error) or type(error).__name__
            raise
        self._step = step
        self._report = UpdateReport(learning_rate, tuple(reports), mismatch)
        return self._report

    def weights(self) -> dict[str, torch.Tensor]:
        """Whole tensors by HF name, a tied one once; adapters are merged. They may share the trainer's memory.

        Under ZeRO-3 rank 0 gets them, the other ranks an empty dictionary.
        """
        return merged_tensors(self._model.hf, self._gathered, keep=self.rank == 0)

    def checksum(self) -> str:
        """Checksum of `weights`, on rank 0 equal to that of an engine which holds them."""
        return weights_checksum(self.weights())

    def open_group(self, place: GroupPlace, deadline_s: float) -> Meeting:
        """Open a weight group for the engines at `place`; see population.broadcast for this and what follows."""
        return self._broadcaster.open(place, deadline_s)

    def join_group(self, ranks: int, deadline_s: float) -> None:
        """Join it together with `ranks` ranks of engines."""
        self._broadcaster.join(ranks, deadline_s)

    def buckets(self, max_bytes: int) -> list[Bucket]:
        """The buckets that `send_weights` broadcasts, in its order."""
        return self._broadcaster.buckets(max_bytes)

    def send_weights(self, max_bytes: int, deadline_s: float) -> None:
        """Broadcast the weights to the engines."""
        self._broadcaster.send(max_bytes, deadline_s)

    def proof(self, held: Sequence[HeldWeights]) -> str:
        """What differs in what servers hold from this trainer's weights; empty when nothing does."""
        return self._broadcaster.proof(held)

    def export(self, folder: str | Path) -> None:
        """Write safetensors and configuration that `AutoModelForCausalLM.from_pretrained` reads. Whole or absent."""
        tensors = self.weights()
        if self.rank == 0:
            with whole_folder(Path(folder)) as unfinished:
                export_model(self._model.hf, tensors, unfinished)
        self._barrier()

    def save(self, folder: str | Path) -> None:
        """Write weights, optimiser state and the last report. Whole or absent; an older folder is replaced."""
        target = Path(folder)
        first = self.rank == 0
        place = whole_folder(target) if first else nullcontext(temporary(target))
        with place as unfinished:
            self._barrier()
            self._engine.save_checkpoint(
                str(unfinished), tag=_TAG, save_latest=False, exclude_frozen_parameters=self.spec.lora is not None
            )
            self._barrier()
            if first:
                facts = {**self._identity(), "step": self._step, "report": self._report and self._report.as_dict()}
                trainer_files.write_manifest(unfinished, facts)
        self._barrier()

    def load(self, folder: str | Path) -> None:
        """Continue bit for bit from a folder that `save` wrote.

        The files inside are pickles: load only folders that your own runs wrote. Raises TrainerError when the folder is
        incomplete or of another model, world size, ZeRO stage or dtype.
        """
        manifest = trainer_files.read_manifest(Path(folder), self._identity())
        with LOADING:
            path, _ = self._engine.load_checkpoint(str(folder), tag=_TAG, load_module_strict=self.spec.lora is None)
        if path is None:
            raise TrainerError(f"{folder}: DeepSpeed found no checkpoint; take an older one")
        self._prepare_mode(self._model.hf)
        self._step = int(manifest["step"])
        self._report = UpdateReport.from_dict(manifest["report"]) if manifest["report"] else None
        self._broken = ""

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers; the trainer can do nothing afterwards."""
        self._broadcaster.close()
        with LOADING:
            self._engine.destroy()
        self._broken = "the trainer is closed"

    def _train(
        self, minibatches: Sequence[Sequence[TrainingResponse]], where: str
    ) -> tuple[list[MinibatchReport], Mismatch]:
        first = next((i for i, batch in enumerate(minibatches) if any(response.weight for response in batch)), 0)
        known = self._with_initial(self._with_theta_old(minibatches, first + 1))
        reports, mismatch, updates = [], Mismatch(), 0
        for number, responses in enumerate(known):
            minibatch = Minibatch(responses, self.spec)
            at_theta_old = number <= first
            report, sums = self._optimise(minibatch, f"{where}, minibatch {number}", at_theta_old, updates)
            reports.append(report)
            updates += minibatch.denominator > 0
            mismatch = mismatch.plus(sums)
        return reports, mismatch

    def _with_theta_old(
        self, minibatches: Sequence[Sequence[TrainingResponse]], start: int
    ) -> list[list[TrainingResponse]]:
        """The minibatches, with theta_old filled in from `start` on where it is unknown and has a gradient.

        The minibatches before are trained at theta_old itself, so their own forward gives it.
        """
        known = [list(minibatch) for minibatch in minibatches]
        missing = [
            (number, index)
            for number in range(start, len(known))
            for index, response in enumerate(known[number])
            if response.trained(self.spec) and response.old_logprobs is None
        ]
        if missing:
            values = self.score([known[number][index].pair for number, index in missing])
            for (number, index), value in zip(missing, values, strict=True):
                known[number][index] = replace(known[number][index], old_logprobs=value)
        return known

    def _with_initial(self, minibatches: list[list[TrainingResponse]]) -> list[list[TrainingResponse]]:
        """The minibatches, with the initial model's log-probabilities where a KL term needs them."""
        if self._initial is None:
            return minibatches
        rows = [response for minibatch in minibatches for response in minibatch if response.trained(self.spec)]
        values = self._gather_scores(self._initial, [response.pair for response in rows])
        found = dict(zip(map(id, rows), values, strict=True))
        return [
            [replace(r, initial_logprobs=found[id(r)]) if id(r) in found else r for r in minibatch]
            for minibatch in minibatches
        ]

    def _optimise(
        self, minibatch: Minibatch, where: str, at_theta_old: bool, updates: int
    ) -> tuple[MinibatchReport, list[float]]:
        """One optimiser step and its sums of the mismatch. The weights stay as they were when the loss or the gradient
        is not finite.
        """
        # An optimiser step needs a backward, so at least a blank one.
        packs = self._cut(minibatch.pairs) or [None]
        sums = torch.zeros(NUMBERS, dtype=torch.float64, device=self.device)
        grad_norm = 0.0
        if minibatch.denominator:
            for number, batch in enumerate(packs):
                last = number == len(packs) - 1
                self._engine.set_gradient_accumulation_boundary(last)
                loss, numbers = self._pack(minibatch, batch, at_theta_old, updates)
                sums += numbers
                if last:
                    loss = self._guarded(loss, sums, where)
                self._engine.backward(loss)
                self._engine.step()
            grad_norm = float(self._engine.get_global_grad_norm())
        total = sums.tolist()
        if not np.isfinite(total[0]):
            raise TrainerError(f"{where}: the loss is {total[0]}; the weights are those before this minibatch")
        if not np.isfinite(grad_norm):
            raise TrainerError(
                f"{where}: the gradient norm is {grad_norm}; the weights are those before this minibatch"
            )
        report = MinibatchReport(
            loss=total[0],
            grad_norm=grad_norm,
            denominator=minibatch.denominator,
            trained_tokens=minibatch.trained_tokens,
            skipped_tokens=minibatch.denominator - minibatch.trained_tokens,
            own_clipped=round(total[1]),
            own_tokens=minibatch.own_tokens,
            peer_clipped=round(total[2]),
            peer_tokens=minibatch.peer_tokens,
            packs=sum(batch is not None for batch in packs),
        )
        return report, total[3:]

    def _pack(
        self, minibatch: Minibatch, batch: MicroBatch | None, at_theta_old: bool, updates: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss to run backward and the sums [NUMBERS] of one micro-batch; a blank one has no gradient."""
        if batch is None:
            loss = token_logprobs(self._engine, blank_batch().to(self.device)).sum() * 0.0
            return loss, torch.zeros(NUMBERS, dtype=torch.float64, device=self.device)
        moved = batch.to(self.device)
        logprobs = token_logprobs(self._engine, moved)
        tokens = minibatch.tokens(moved, self.device)
        result = pack_loss(logprobs, tokens, self.spec, at_theta_old=at_theta_old, updates=updates)
        # DeepSpeed averages over the ranks; the minibatch's gradient is the sum of theirs.
        return result.loss * self.world, result.numbers

    def _guarded(self, loss: torch.Tensor, sums: torch.Tensor, where: str) -> torch.Tensor:
        """Sum the statistics over the ranks; a loss that is not finite turns the gradient into NaN.

        DeepSpeed leaves out the optimiser step, and clears its buffers, when the gradient norm is not finite. That is
        the one way to drop a minibatch which every ZeRO stage supports.
        """
        if self.world > 1:
            dist.all_reduce(sums)
        return loss if bool(torch.isfinite(sums[0])) else loss * float("nan")

    def _gather_scores(
        self, forward: Callable[..., torch.Tensor], sequences: Sequence[Pair]
    ) -> list[NDArray[np.float32]]:
        """Every rank scores its share; all get everything, in the order of the sequences."""
        values = score(forward, self._cut(sequences), self.device)
        if self.world > 1:
            shares: list[Any] = [None] * self.world
            dist.all_gather_object(shares, values)
            for share in shares:
                values.update(share)
        return [values[index] for index in range(len(sequences))]

    def _forward(self, *inputs: torch.Tensor | None) -> torch.Tensor:
        """A forward without gradient: through the engine only where it has to gather weights."""
        return self._engine(*inputs) if self._gathered else self._model(*inputs)

    def _prepare_mode(self, hf: Any) -> None:
        """Evaluation mode, as scoring and the engine have it; gradient checkpointing alone needs training mode."""
        hf.train(self.spec.gradient_checkpointing)

    def _identity(self) -> dict[str, Any]:
        return {
            "model": self._fingerprint,
            "world_size": self.world,
            "zero_stage": self.spec.zero_stage,
            "dtype": self.spec.dtype,
        }

    def _check_ids(self, sequences: Sequence[Pair]) -> None:
        responses = [TrainingResponse(prompt, response, None, 0.0) for prompt, response in sequences]
        where = f"member {self.spec.member or self.spec.model_path}, score"
        check_responses([responses], where, self._limit, self._excluded)

    def _barrier(self) -> None:
        if self.world > 1:
            dist.barrier()


def _layout(spec: TrainerSpec, hf: Any, paths: Paths) -> Layout:
    """Packs where attention takes variable lengths; with dense attention padded rows cost less than one long row."""
    if spec.layout == "packed" and not paths.packed:
        raise TrainerError(f"layout is packed, but {'; '.join(paths.notes)}")
    if spec.layout != "auto":
        return spec.layout
    variable = "flash" in str(getattr(hf.config, "_attn_implementation", ""))
    return "packed" if variable and paths.packed else "rows"


def _deepspeed(device: torch.device) -> Any:
    """DeepSpeed, told about the device before its first import, and kept from compiling ops nobody uses here."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", "0")
    import deepspeed
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator

    if get_accelerator().device_name() != device.type:
        raise TrainerError(
            f"the trainer is to run on {device.type}, but DeepSpeed was already set up for "
            f"{get_accelerator().device_name()} in this process; set DS_ACCELERATOR={device.type} in the environment"
        )
    if device.type == "cpu":
        # Two minutes of C++ compiling for a shared-memory collective that training never calls.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
