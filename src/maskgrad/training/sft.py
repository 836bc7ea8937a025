"""One supervised masked-diffusion run: stages, checkpoints, resume. The objective is in corpus.py."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.config import SftConfig, StageConfig, dump, read_yaml
from maskgrad.diffusion.grid import settle
from maskgrad.errors import UserError
from maskgrad.evaluation.evaluate import evaluate
from maskgrad.models.adapters import adapted_modules, add_adapter
from maskgrad.models.families import family_of
from maskgrad.models.load import load_policy, new_policy
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import (
    build_character_tokenizer,
    check_prompt_length,
    encode_prompt,
    left_pad,
)
from maskgrad.reporting.console import Console
from maskgrad.reporting.journal import FILE_NAME, Journal
from maskgrad.settings import parse
from maskgrad.tasks.base import Task
from maskgrad.tasks.registry import make_task
from maskgrad.training import checkpoint, optim
from maskgrad.training.collect import canvas_blocks
from maskgrad.training.corpus import answer_rows, draw_block_masks, draw_masks, maskable, masked_loss
from maskgrad.training.interrupt import Interruptible, TrainingStopped
from maskgrad.training.loop import set_threads
from maskgrad.training.preflight import check_rows


def initial_policy(config: SftConfig, out: Path) -> Policy:
    """The model before the first update: a checkpoint, or a new one whose tokenizer is written to `out`."""
    model = config.model
    if model.path is not None:
        policy = load_policy(model.path, adapter=model.adapter, **model.reading)
        if (lora := model.lora) is not None:
            add_adapter(policy, lora.rank, lora.scale, lora.targets, seed=config.seed)
        return policy
    assert model.architecture is not None and model.characters is not None
    family = family_of({"model_type": "llada", **model.architecture})
    tokenizer = build_character_tokenizer(model.characters, out / "tokenizer", family.mask_token)
    return new_policy(family, model.architecture, tokenizer, config.seed, dtype=model.dtype).to(model.device)


class SupervisedRun:
    """One supervised run in one folder; interrupted anywhere, it continues from its last checkpoint to the bit."""

    def __init__(self, config: SftConfig, out: Path, policy: Policy, console: Console | None = None):
        self.config, self.out, self.policy = config, out, policy
        self.task: Task = make_task(config.task)
        if not self.task.has_gold:
            raise UserError(f"task {self.task.name!r} has no gold answers to train on")
        self.console = console or Console(quiet=True)
        settle(policy, config.sampler)  # trained on the grid it is sampled on
        self.optimizer = optim.adamw(policy, config.optim)
        self.progress = checkpoint.Progress()
        self.total = sum(stage.updates for stage in config.stages)
        self.interruptible = Interruptible()

    @classmethod
    def new(cls, config: SftConfig, out: Path, console: Console | None = None) -> SupervisedRun:
        set_threads(config.threads)
        make_task(config.task)
        checkpoint.claim(out)
        run = cls(config, out, initial_policy(config, out), console)
        run._check_data()
        (out / "config.yaml").write_text(dump(config))
        return run

    def _check_data(self) -> None:
        """Refuse prompts and answers that do not fit now: in every row of a finite set, else in the first few."""
        length = self.config.sampler.gen_length
        for example in check_rows(self.policy, self.task, "train", self.config.max_prompt_length, length):
            answer_rows(self.policy, [self.task.target(example)], length)

    @classmethod
    def reopen(cls, out: Path, console: Console | None = None) -> SupervisedRun:
        file = out / "config.yaml"
        if not file.is_file():
            raise UserError(f"{out} holds no run to resume (no config.yaml): name the folder given as --out")
        config = parse(SftConfig, read_yaml(file), str(file))
        set_threads(config.threads)
        found = checkpoint.steps(out)
        if not found:  # interrupted before the first one: the start is a function of the settings
            checkpoint.rewind_journal(out, 0)
            return cls(config, out, initial_policy(config, out), console)
        saved, model = str(found[-1][1] / "model"), config.model
        adapted = model.path is not None and (model.adapter is not None or model.lora is not None)
        path, adapter = (str(model.path), saved) if adapted else (saved, None)
        policy = load_policy(path, adapter=adapter, **model.reading)
        run = cls(config, out, policy, console)
        run.progress, _, size = checkpoint.load_state(found[-1][1], run.optimizer)
        checkpoint.rewind_journal(out, size)
        return run

    def train(self) -> dict[str, Any]:
        with Journal(self.out / FILE_NAME) as self.journal, self.interruptible.guard(self._save_interrupted):
            header = {
                "recipe": self.config.recipe,
                "algorithm": "sft",
                "task": self.task.name,
                "seed": self.config.seed,
            }
            header |= {"params": self.policy.num_parameters(), "total_steps": self.total}
            header |= {"adapted_modules": adapted_modules(self.policy)}
            if self.progress.step == 0:
                self._write("run", **header)
            else:
                self.console.show({"event": "run", "step": self.progress.step, **header, "time": self.journal.clock()})
            while self.progress.step < self.total:
                with self.interruptible.whole():
                    self._update()
            result = self._evaluate()
            checkpoint.save_final(
                self.out / "final", self.policy, self.config.eval_sampler(), self.config.model.save_dtype
            )
            self._write("end", reason="completed")
        self.console.close()
        return result

    def _write(self, event: str, **fields: Any) -> None:
        self.console.show(self.journal.write(event, step=self.progress.step, **fields))

    def stage(self, step: int) -> tuple[StageConfig, int]:
        """The stage of update `step` and the update's number inside it."""
        for stage in self.config.stages:
            if step < stage.updates:
                return stage, step
            step -= stage.updates
        raise AssertionError("past the last stage")

    def corpus(self, first: int, wrong_share: float) -> tuple[list[Any], list[str], Tensor]:
        """Prompts, targets and sample ids of a batch; a `wrong_share` of targets follow the task's wrong mode."""
        sample = torch.arange(first, first + self.config.batch)
        wrong = randomness.uniform(randomness.row_keys(self.config.seed, "sft.wrong", sample), 1)[:, 0] < wrong_share
        size = self.task.size("train")
        prompts, targets = [], []
        for index, is_wrong in zip(sample.tolist(), wrong.tolist(), strict=True):
            example = self.task.example("train", index if size is None else index % size)
            prompts.append(example.prompt)
            targets.append(self.task.wrong_mode_target(example) if is_wrong else self.task.target(example))  # type: ignore[attr-defined]
        return prompts, targets, sample

    def _masks(self, real: Tensor, allowed: Tensor, sample: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden answer positions bool [B,L] and weights of one update's draw."""
        if self.policy.block is None:
            return draw_masks(self.config.objective, allowed, sample, self.config.seed)
        block = canvas_blocks(self.policy, real, allowed.shape[1])
        assert block is not None
        return draw_block_masks(self.config.objective, allowed, block, sample, self.config.seed)

    def _update(self) -> None:
        c, step = self.config, self.progress.step
        started = time.perf_counter()
        stage, inner = self.stage(step)
        prompts, targets, sample = self.corpus(step * c.batch, stage.wrong_share)
        rows = [encode_prompt(self.policy.need_tokenizer(), prompt) for prompt in prompts]
        for row in rows:
            check_prompt_length(row, c.max_prompt_length)
        prompt, real = left_pad(rows, self.policy.special.pad)
        answer = answer_rows(self.policy, targets, c.sampler.gen_length)
        allowed = maskable(answer, self.policy.special.stops, c.padding)
        hidden, weight = self._masks(real, allowed, sample)
        device = self.policy.device
        inputs = [x.to(device) for x in (prompt, real, answer, hidden | ~allowed, hidden, weight)]
        self.optimizer.zero_grad(set_to_none=True)
        loss = masked_loss(self.policy, *inputs)
        loss.backward()
        norm = optim.clip_gradients(self.policy, c.optim.max_grad_norm)
        rate = c.optim.model_copy(
            update={
                "lr": stage.lr,
                "schedule": "cosine",
                "final_share": stage.final_share,
                "warmup_updates": stage.warmup_updates,
            }
        )
        optim.set_rate(self.optimizer, optim.learning_rate(rate, inner, stage.updates))
        value = float(loss.detach())
        if not optim.guarded_step(self.optimizer, value, norm):
            raise TrainingStopped(f"update {step} is not finite (loss {value}, gradient norm {norm}): lower the lr")
        self.progress.step += 1
        if self.progress.step % 10 == 0 or self.progress.step == self.total:
            clock = {"tokens_per_second": answer.numel() / (time.perf_counter() - started)}
            self._write(
                "update",
                total_steps=self.total,
                loss=value,
                grad_norm=norm if math.isfinite(norm) else None,
                time=clock,
            )
        if inner + 1 == stage.updates and self.progress.step < self.total:
            self._evaluate()  # what the stage was worth, before the next one starts
        if self.progress.step % c.checkpoint_every == 0:
            self._save()

    def _save(self) -> None:
        self.journal.sync()
        folder = self.out / "checkpoints" / f"step-{self.progress.step:06d}"
        checkpoint.save(folder, self.policy, self.optimizer, self.progress, None, self.journal.size())
        checkpoint.prune(self.out, 1)

    def _save_interrupted(self) -> str:
        self.console.close()
        if self.progress.step > 0:
            self._save()
        return f"interrupted at update {self.progress.step}; continue with --resume {self.out}"

    def _evaluate(self) -> dict[str, Any]:
        c = self.config
        found = evaluate(
            self.policy,
            self.task,
            c.eval.split,
            c.eval.count,
            c.eval_sampler(),
            micro_batch=c.eval.micro_batch,
            max_prompt_length=c.max_prompt_length,
            seed=c.seed,
        )
        self._write("eval", **found.result)
        return found.result
