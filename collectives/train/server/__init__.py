"""A parameter server: parameters on some ranks or threads, to which workers push gradients and from which they pull.

It works by messages between workers and servers, on a communicator of its own. Servers decide by `Clocks` who may go on
and what becomes an update; `strategies/` has the policies. The parts, from the ground up:

* `messages`: the form of a message; `transfers`: requests that may fail because a rank has died.
* `lifeline`: which ranks have died, or have ended their program without a word.
* `layout`: which server has which elements of which bucket.
* `clocks`, `shard`, `tables`, `service`: the state of a server, which no message is needed to drive.
* `loop`: what a server does until all workers have left; `client`: the worker's side.
"""

from .lifeline import Lifeline, lifeline
from .tables import Table
from .transfers import Inbox

__all__ = ["Inbox", "Lifeline", "Table", "lifeline"]
