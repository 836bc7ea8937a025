"""Tasks: examples, prompts, graders and reward functions. Imports no tensor library."""

from maskgrad.tasks.answers import Extracted, last_box, last_tag
from maskgrad.tasks.base import SPLITS, Example, Grade, Task, self_test
from maskgrad.tasks.countdown import CountdownSettings, CountdownTask
from maskgrad.tasks.custom import CustomTask
from maskgrad.tasks.registry import TASKS, make_task
from maskgrad.tasks.rewards import call_reward_functions
from maskgrad.tasks.sudoku import SudokuSettings, SudokuTask

__all__ = [
    "SPLITS",
    "TASKS",
    "CountdownSettings",
    "CountdownTask",
    "CustomTask",
    "Example",
    "Extracted",
    "Grade",
    "SudokuSettings",
    "SudokuTask",
    "Task",
    "call_reward_functions",
    "last_box",
    "last_tag",
    "make_task",
    "self_test",
]
