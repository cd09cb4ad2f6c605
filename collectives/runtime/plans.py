"""The idle plans of a communicator, by choice, shape and group of the node-local engine."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from ..core import _core

__all__ = ["Plan", "Plans"]

Plan = _core.Plan | _core.NodePlan | _core.HierarchyPlan

PLAN_BYTES = 64 << 20  # most scratch memory that idle plans may hold
KINDS = 256  # most keys of idle plans


class Plans:
    """Idle plans by their keys: choice, shape and group of the node-local engine."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # any thread may return a plan, and so may a signal handler meanwhile
        self._idle: OrderedDict[Any, list[Plan]] = OrderedDict()
        self._bytes = 0

    def take(self, key: Any) -> Plan | None:
        """Remove an idle plan with this key and return it; None if there is none."""
        with self._lock:
            plans = self._idle.get(key)
            if not plans:
                return None
            plan = plans.pop()
            self._bytes -= plan.footprint
            return plan

    def keep(self, plan: Plan) -> None:
        """Keep ``plan`` as idle; plans with the least recently used keys are dropped beyond 64 MiB or 256 keys."""
        if plan.footprint > PLAN_BYTES:
            return
        with self._lock:
            self._idle.setdefault(plan.key, []).append(plan)
            self._bytes += plan.footprint
            if plan.key in self._idle:  # a signal handler may have dropped it
                self._idle.move_to_end(plan.key)
            while self._bytes > PLAN_BYTES or len(self._idle) > KINDS:
                _, plans = self._idle.popitem(last=False)
                self._bytes -= sum(p.footprint for p in plans)

    def forget(self) -> None:
        """Drop all idle plans."""
        with self._lock:
            self._idle.clear()
            self._bytes = 0
