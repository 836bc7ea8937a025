"""The training loop. Reads: collect -> prepare -> updates -> checkpoint, evaluation at the start and the end.

Every state between two optimiser steps can be saved and continued to the bit; an interruption during sampling loses the
rollouts of that batch only, because they are a pure function of weights, seed and counters.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.config import RunConfig, dump, read_yaml
from maskgrad.diffusion.grid import settle
from maskgrad.errors import BrokenModel, UserError
from maskgrad.evaluation.evaluate import evaluate
from maskgrad.models.adapters import adapted_modules
from maskgrad.models.policy import Policy
from maskgrad.reporting.console import Console
from maskgrad.reporting.journal import FILE_NAME, Journal
from maskgrad.settings import parse
from maskgrad.tasks.base import Example, Task, self_test
from maskgrad.tasks.registry import make_task
from maskgrad.training import checkpoint, health, optim
from maskgrad.training.card import model_card
from maskgrad.training.checkpoint import Progress
from maskgrad.training.collect import collect
from maskgrad.training.interrupt import Interrupted, Interruptible, TrainingStopped
from maskgrad.training.preflight import check_rows
from maskgrad.training.starting import continued_policy, starting_policy
from maskgrad.training.update import Prepared, prepare, update


def set_threads(threads: int) -> None:
    """Intra-op CPU threads; 0 leaves torch's own choice."""
    if threads:
        torch.set_num_threads(threads)


__all__ = ["Interrupted", "TrainingRun", "TrainingStopped", "set_threads"]


class TrainingRun:
    """One run in one folder."""

    def __init__(self, config: RunConfig, out: Path, policy: Policy, task: Task, console: Console | None = None):
        self.config, self.out, self.policy, self.task = config, out, policy, task
        self.algorithm = config.algorithm
        self.console = console or Console(quiet=True)
        settle(policy, config.rollout.sampler)
        self.algorithm.check_attention(policy.block)
        self.optimizer = optim.adamw(policy, config.optim)
        self.progress = Progress()
        self.buffer: Prepared | None = None
        self.reference = self._reference()
        if self.reference is not None:
            settle(self.reference, config.rollout.sampler)  # it scores on the same blocks
        self.starting = self._starting()
        self.interruptible = Interruptible()
        policy.set_gradient_checkpointing(config.model.gradient_checkpointing)

    def _reference(self) -> Policy | None:
        """The starting policy, kept only if a KL term reads it."""
        if not self.algorithm.objective().needs_reference:
            return None
        if self.config.model.lora is not None:  # a new adapter changes nothing, so the base is what was started from
            return self.policy
        return starting_policy(self.config).requires_grad_(False)

    def _starting(self) -> list[Tensor] | None:
        """The starting weights, kept only if the drift is tracked; from the file, so that a resumed run has them."""
        if not self.config.train.track_drift:
            return None
        shared = self.reference is None or self.reference is self.policy
        start = starting_policy(self.config) if shared else self.reference
        assert start is not None
        return [p.detach() for p in start.parameters()]

    @classmethod
    def new(cls, config: RunConfig, out: Path, task: Task | None = None, console: Console | None = None) -> TrainingRun:
        """Load everything a fresh run needs; the folder is claimed before the model is loaded."""
        set_threads(config.train.threads)
        task = task or make_task(config.task, config.grading.settings())
        config.algorithm.check(config.rollout.sampler, config.rollout.group_size)
        checkpoint.claim(out)
        policy = starting_policy(config)
        run = cls(config, out, policy, task, console)
        run._check_prompts()
        return run

    def _check_prompts(self) -> None:
        """Refuse data that cannot work now, and let a reward function that fails do so before any sampling."""
        rollout = self.config.rollout
        for split in dict.fromkeys(("train", self.config.eval.split)):
            examples = check_rows(self.policy, self.task, split, rollout.max_prompt_length, rollout.sampler.gen_length)
            self.task.grade_batch(examples[:2], [""] * len(examples[:2]))

    @classmethod
    def reopen(cls, out: Path, task: Task | None = None, console: Console | None = None) -> TrainingRun:
        """Load an interrupted run at its last complete checkpoint; settings come from its config.yaml."""
        file = out / "config.yaml"
        if not file.is_file():
            raise UserError(f"{out} holds no run to resume (no config.yaml): name the folder given as --out")
        config = parse(RunConfig, read_yaml(file), str(file))
        if task is None and config.task.get("name") == "custom":
            raise UserError(
                f"{out} was started from Python with its own data: resume it with Trainer.train(resume=True)"
            )
        set_threads(config.train.threads)
        found = checkpoint.steps(out)
        policy = continued_policy(config, found[-1][1] / "model") if found else starting_policy(config)
        return cls(config, out, policy, task or make_task(config.task, config.grading.settings()), console)

    def start(self) -> dict[str, Any]:
        """Run from the beginning in a fresh folder."""
        self_test(self.task)  # before the folder holds a run
        (self.out / "config.yaml").write_text(dump(self.config))
        return self._go(resumed=False)

    def resume(self) -> dict[str, Any]:
        """Continue from the last complete checkpoint, or from the start if there is none."""
        self_test(self.task)
        found = checkpoint.steps(self.out)
        size = 0
        if found:
            self.progress, self.buffer, size = checkpoint.load_state(found[-1][1], self.optimizer)
            self._check_same()
        checkpoint.rewind_journal(self.out, size)
        return self._go(resumed=bool(found))

    def _check_same(self) -> None:
        """Refuse to continue on other data, or with a KL term that refers to other weights."""
        if self.progress.task != self.task.hash():
            raise UserError(f"the task of {self.out} has changed since it was started: resume it with the same data")
        if self.reference is not None and self.progress.reference != self._reference_hash(self.reference):
            raise UserError(
                f"{self.config.model.path} no longer holds the weights this run was started from, and its KL term "
                "refers to them: put them back"
            )

    def _reference_hash(self, reference: Policy) -> str:
        """Hash of the reference's weights; of the base alone where the policy's own adapter is switched off."""
        return checkpoint.weights_hash(reference, adapter=reference is not self.policy)

    def _go(self, resumed: bool) -> dict[str, Any]:
        self.progress.task = self.task.hash()
        if self.reference is not None:
            self.progress.reference = self._reference_hash(self.reference)
        with Journal(self.out / FILE_NAME) as self.journal, self.interruptible.guard(self._save_interrupted):
            try:
                last = self._run(resumed)
            except BrokenModel as error:  # such weights are not worth a checkpoint
                kept = checkpoint.steps(self.out)
                where = f"the last checkpoint is {kept[-1][1]}" if kept else "there is no checkpoint yet"
                self._write("end", reason=f"stopped: {error}")
                raise TrainingStopped(f"{error}; {where}: lower optim.lr, or check the model") from error
            except (TrainingStopped, UserError) as error:
                self._save_interrupted()
                self._write("end", reason=f"stopped: {error}")
                raise
        self.console.close()
        return last

    def _run(self, resumed: bool) -> dict[str, Any]:
        header = self._header()
        if resumed:
            self.console.show({"event": "run", "step": self.progress.step, **header, "time": self.journal.clock()})
        else:
            self._write("run", **header)
            self._evaluate()
        while self.progress.step < self.config.train.max_updates:
            self._one_update()
        last = self._last_evaluation()
        card = model_card(self.config, self.policy, last, self.progress.step)
        checkpoint.save_final(self.out / "final", self.policy, self.config.eval_sampler(), card=card)
        self._write("end", reason="completed")
        return last

    def _header(self) -> dict[str, Any]:
        c = self.config
        return {
            "recipe": c.recipe,
            "algorithm": c.algorithm.name,
            "task": self.task.name,
            "model": c.model.path,
            "params": self.policy.num_parameters(),
            "trainable": sum(p.numel() for p in self.policy.parameters() if p.requires_grad),
            "adapted_modules": adapted_modules(self.policy),
            "seed": c.seed,
            "total_steps": c.train.max_updates,
        }

    def _write(self, event: str, **fields: Any) -> None:
        self.console.show(self.journal.write(event, step=self.progress.step, **fields))

    def _one_update(self) -> None:
        if self.buffer is None:
            self._collect()
        assert self.buffer is not None
        started = time.perf_counter()
        with self.interruptible.whole():
            index, reward = self.progress.buffer_index, float(self.buffer.batch.reward.mean())
            step = self.progress.step
            metrics = update(
                self.policy, self.optimizer, self.algorithm, self.config, self.buffer, index, step, self.reference
            )
            if self.starting is not None:
                metrics["drift"] = optim.distance(self.policy, self.starting)
            self.progress.step += 1
            self.progress.buffer_index += 1
            self._count_skipped(metrics)
            if self.progress.buffer_index == self.algorithm.updates_per_batch:
                self.buffer, self.progress.buffer_index = None, 0
            self._write(
                "update",
                total_steps=self.config.train.max_updates,
                reward=reward,
                **metrics,
                time={"seconds": time.perf_counter() - started},
            )
            self._stop_if_sick()
            self._after_update()

    def _after_update(self) -> None:
        train, step = self.config.train, self.progress.step
        if train.eval_every and step % train.eval_every == 0:
            self._evaluate()
        if step % train.checkpoint_every == 0 or step == train.max_updates:
            self.save()

    def _count_skipped(self, metrics: dict[str, Any]) -> None:
        """Count updates that were not finite, and keep the batch that caused one. One without signal proves nothing."""
        if not metrics["skipped"]:
            self.progress.skipped_in_row = self.progress.skipped_in_row if metrics["views"] == 0 else 0
            return
        self.progress.skipped += 1
        self.progress.skipped_in_row += 1
        folder = self.out / "skipped"
        folder.mkdir(exist_ok=True)
        torch.save(self.buffer, folder / f"step-{self.progress.step:06d}.pt")
        self._write("warning", message=f"update {self.progress.step} was not finite and was skipped")

    def _stop_if_sick(self) -> None:
        """Stop after too many skipped updates in a row; the weights, which are the last good ones, are saved."""
        if self.progress.skipped_in_row < self.config.train.max_skipped_in_row:
            return
        folder = self.save()
        raise TrainingStopped(
            f"{self.progress.skipped_in_row} updates in a row were not finite; the last good weights are in {folder}, "
            f"the batches in {self.out / 'skipped'}: lower optim.lr, or tighten the clip"
        )

    def _collect(self) -> None:
        c = self.config
        started = time.perf_counter()
        examples = [self._example(self.progress.cursor + i) for i in range(c.rollout.prompts_per_batch)]
        first_group = self.progress.batches * c.rollout.prompts_per_batch
        collected = collect(self.policy, self.task, self.algorithm, c.rollout, examples, first_group, c.seed)
        if len(collected.batch) == 0:
            self._save_samples(collected.texts)
            raise TrainingStopped(
                f"0 usable rewards of {len(collected.texts)} rollouts ({collected.metrics['status']}): check the "
                f"reward functions; some rollouts are in {self.out / 'samples'}"
            )
        buffer = prepare(self.policy, self.reference, self.algorithm, c, collected.batch)
        seconds = time.perf_counter() - started
        clock = {
            **collected.seconds,
            "seconds": seconds,
            "tokens_per_second": collected.metrics["live_tokens"] / seconds,
        }
        with self.interruptible.whole():  # counters, buffer and journal move together
            self.buffer = buffer
            self.progress.cursor += len(examples)
            self.progress.batches += 1
            if c.train.samples_every and (self.progress.batches - 1) % c.train.samples_every == 0:
                self._save_samples(collected.texts)
            self._write("rollout", batch=self.progress.batches, **collected.metrics, time=clock)
            if (message := health.signal(self.progress, collected.metrics)) is not None:
                self._write("warning", message=message)

    def _example(self, index: int) -> Example:
        """Training example number `index`; finite sets are walked through in a new random order each epoch."""
        size = self.task.size("train")
        if size is None:
            return self.task.example("train", index)
        if size == 0:
            raise UserError(f"the training set of task {self.task.name!r} is empty")
        epoch, place = divmod(index, size)
        return self.task.example("train", randomness.permutation(self.config.seed, "loop.epoch", epoch, size)[place])

    def _save_samples(self, texts: list[dict[str, Any]]) -> None:
        folder = self.out / "samples"
        folder.mkdir(exist_ok=True)
        rows = texts[: 4 * self.config.rollout.group_size]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"batch-{self.progress.batches:06d}.jsonl").write_text(lines)

    def _evaluate(self) -> dict[str, Any]:
        c = self.config
        found = evaluate(
            self.policy,
            self.task,
            c.eval.split,
            c.eval.count,
            c.eval_sampler(),
            micro_batch=c.eval.micro_batch,
            max_prompt_length=c.rollout.max_prompt_length,
            seed=c.seed,
        )
        folder = self.out / "eval"
        folder.mkdir(exist_ok=True)
        (folder / f"step-{self.progress.step:06d}.json").write_text(json.dumps(found.result, indent=1))
        self._write("eval", **found.result)
        return found.result

    def _last_evaluation(self) -> dict[str, Any]:
        """Evaluation after the last update, which may have been made on schedule already."""
        every = self.config.train.eval_every
        if every == 0 or self.progress.step % every:
            return self._evaluate()
        result: dict[str, Any] = json.loads((self.out / "eval" / f"step-{self.progress.step:06d}.json").read_text())
        return result

    def save(self) -> Path:
        """Checkpoint the present state."""
        self.journal.sync()
        folder = self.out / "checkpoints" / f"step-{self.progress.step:06d}"
        checkpoint.save(folder, self.policy, self.optimizer, self.progress, self.buffer, self.journal.size())
        checkpoint.prune(self.out, self.config.train.keep_checkpoints)
        return folder

    def _save_interrupted(self) -> str:
        """The journal may hold lines of a phase that the checkpoint does not contain; resume cuts them off."""
        self.console.close()
        if self.progress.step > 0 and not (self.out / "checkpoints" / f"step-{self.progress.step:06d}").exists():
            self.save()
        return f"interrupted at update {self.progress.step}; continue with --resume {self.out}"
