"""Who runs when, and on which pages.

Whoever only reads the settings does not load torch.
"""

from typing import TYPE_CHECKING

from minisgl.scheduler.config import SchedulerConfig
from minisgl.utils.lazy import lazy_names

if TYPE_CHECKING:
    from minisgl.scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerConfig"]

__getattr__ = lazy_names(__name__, {"scheduler": ["Scheduler"]})
