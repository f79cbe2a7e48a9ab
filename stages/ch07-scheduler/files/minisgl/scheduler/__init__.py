"""Who runs when, and on which pages."""

from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerConfig"]
