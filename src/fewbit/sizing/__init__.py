"""How many replicas a load needs: figures of one replica, and a simulation of the scheduler of many."""

from .figures import ReplicaFigures, read_figures
from .load import ClientLoad
from .plan import SizingPlan, make_plan, smallest_plan

__all__ = ["ClientLoad", "ReplicaFigures", "SizingPlan", "make_plan", "read_figures", "smallest_plan"]
