"""Your own prompts and reward function: teach the tiny Sudoku model to prefer completions that start with an odd digit.

python examples/custom_reward.py runs/odd-first
"""

from __future__ import annotations

import sys

from maskgrad import Trainer
from maskgrad.algorithms import EGSPO
from maskgrad.tasks import make_task


def odd_first(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """TRL's signature: keyword columns in, one float per completion out (None abstains)."""
    return [1.0 if text[:1] in ("1", "3") else 0.0 for text in completions]


def main() -> None:
    sudoku = make_task({"name": "sudoku"})
    rows = [{"prompt": sudoku.example("train", i).prompt} for i in range(64)]
    trainer = Trainer(
        model="maskgrad:base_sudoku_tiny",
        algorithm=EGSPO(steps=4),
        reward_funcs=[odd_first],
        train_dataset=rows,
        config={
            "rollout": {
                "prompts_per_batch": 8,
                "group_size": 8,
                "sampler": {"gen_length": 16, "steps": 8, "temperature": 1.0},
            },
            "optim": {"lr": 5e-4},
            "train": {"max_updates": 20},
            "eval": {"count": 64},
        },
        out=sys.argv[1] if len(sys.argv) > 1 else "runs/odd-first",
    )
    result = trainer.train()
    print(f"mean reward of greedy completions after training: {result['reward']:.2f}")


if __name__ == "__main__":
    main()
