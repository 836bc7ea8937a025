"""What a method cannot do is refused before anything is loaded, in one sentence with the key and the value."""

from __future__ import annotations

from typing import Any

import pytest

from maskgrad.config import run_config
from maskgrad.errors import UserError

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("diffu_grpo", {"clip_low": -0.1}, r"algorithm.clip_low = -0.1 .*greater than or equal to 0"),
    ("diffu_grpo", {"clip_high": 0}, r"algorithm.clip_high = 0 .*greater than or equal to 1"),
    ("diffu_grpo", {"clip_low": 1.2}, r"algorithm.clip_low = 1.2 .*less than or equal to 1"),
    ("stabledrl", {"clip_high": 0}, r"algorithm.clip_high = 0 .*greater than 0"),
    ("stabledrl", {"clip_low": 7}, r"clip_low 7.0 lies above clip_high 6.0: swap or widen them"),
    ("espo", {"draws": 0}, r"algorithm.draws = 0 .*greater than or equal to 1"),
    ("spg", {"draws": 0}, r"algorithm.draws = 0 .*greater than or equal to 1"),
    ("unigrpo", {"rate_low": 0.9, "rate_high": 0.1}, r"rate_low 0.9 lies above rate_high 0.1"),
    ("egspo", {"steps": 0}, r"algorithm.steps = 0 .*greater than or equal to 1"),
    ("egspo", {"steps": 17}, r"algorithm.steps 17 exceeds the 16 denoising passes of the sampler: use at most 16"),
    ("egspo", {"steps": 4, "minibatches": 5, "split": "slots"}, r"minibatches 5 .*use at most 4 with split by slots"),
    ("composed", {"view": {"steps": 17}}, r"algorithm.steps 17 exceeds the 16 denoising passes"),
]


@pytest.mark.parametrize(("name", "settings", "sentence"), REFUSED)
def test_settings_that_cannot_work(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        config = run_config("quickstart", {"algorithm": settings}, name)
        config.algorithm.check(config.rollout.sampler, config.rollout.group_size)
    assert "\n" not in str(caught.value)


def test_a_group_of_one_has_no_baseline() -> None:
    with pytest.raises(UserError, match="group_size 1 gives no baseline: use at least 2"):
        run_config("quickstart", {"rollout": {"group_size": 1}})


def test_another_view_replaces_the_settings_of_the_first() -> None:
    """Error caught: `steps` of the recipe's selected_steps kept as an unknown key of mean_field."""
    parts = {"view": {"name": "mean_field"}, "bound": {"name": "sequence"}, "credit": {"name": "centred"}}
    config = run_config("quickstart", {"algorithm": parts}, "composed")
    assert config.algorithm.model_dump()["view"] == {"name": "mean_field", "p_prompt": 0.15, "draws": 1}
