"""The sources of OS tasks."""

from gymfleet_envs.os.agentbench import agentbench_tasks
from gymfleet_envs.os.generate import LEVELS, generate
from gymfleet_envs.os.task import OsTask
from gymfleet_envs.tasks import GeneratedTasks, TaskSource

__all__ = ["agentbench_tasks", "generated_tasks"]


def generated_tasks() -> TaskSource[OsTask]:
    """Generated questions and chores at four levels."""
    return GeneratedTasks("os", generate, lambda task: f"{task.description}\n{task.init}\n{task.check}", levels=LEVELS)
