"""Distributed reinforcement learning on the parameter server and the messages of this library.

A layer above ``collectives.train``. From the ground up:

* `transitions`, `replay/`: what is learnt from, kept, and drawn. `exploration`, `targets`: what actors and learners
  compute.
* `tasks`: environments. `networks`, `torch`: networks of action values.
* `acting`, `learning`, `memory`: an actor, a learner, a replay with its pace. None of them communicates.
* `dqn`, `gorila`, `apex/`: three ways to put them together. `mail`: messages, whose bytes are counted by path.
* `course`, `saving`, `picture`, `options`, `effects`, `cli`: a run.
"""

from .acting import Actor, evaluate
from .apex.player import ApeX
from .course import Course, Player, Record, follow
from .dqn import DQN
from .experience import read_experience, write_experience
from .exploration import annealed, apex_epsilon
from .gorila import Gorila
from .learning import Learner, Outliers
from .memory import Memory
from .networks import Dueling, NumpyValues, Values, convolutional, perceptron
from .replay import Prioritised, Replay, Sample, SumTree, Uniform
from .settings import Settings, settings
from .targets import double_q, huber
from .tasks import Task, task
from .transitions import Form, NStep, Transitions

__all__ = [
    "DQN",
    "Actor",
    "ApeX",
    "Course",
    "Dueling",
    "Form",
    "Gorila",
    "Learner",
    "Memory",
    "NStep",
    "NumpyValues",
    "Outliers",
    "Player",
    "Prioritised",
    "Record",
    "Replay",
    "Sample",
    "Settings",
    "SumTree",
    "Task",
    "Transitions",
    "Uniform",
    "Values",
    "annealed",
    "apex_epsilon",
    "convolutional",
    "double_q",
    "evaluate",
    "follow",
    "huber",
    "perceptron",
    "read_experience",
    "settings",
    "task",
    "write_experience",
]
