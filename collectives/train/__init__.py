"""Training on top of a communicator: networks in NumPy, sharded data, strategies, runs.

All communication goes through mpi4py's methods of the communicator that is given. Importing this package needs neither
MPI nor scikit-learn nor matplotlib.
"""

from . import checkpoint, tensor, threads
from .agree import communicator
from .compression import BFloat16Wire, Compression, Float16Wire, Int8, PowerSGD, TopK
from .data.datasets import Dataset, digits, load_npz, stratified_split
from .data.loader import Loader
from .data.sources import SampleError
from .data.text import Text, characters
from .deaths import is_death
from .distribute import distribute
from .flat.tree import allreduce_tree
from .mesh import Mesh
from .models.classifiers import cnn, mlp
from .models.layers import Add, Conv2d, Dropout, Flatten, Linear, MaxPool2d, ReLU
from .models.loss import CrossEntropyLoss, Loss
from .models.nn import Layer, Output, Parameter, Sequential
from .optim import schedules
from .optim.adam import Adam, AdamW
from .optim.schedules import get_lr, set_lr
from .optim.sgd import SGD
from .pipeline.graph import Graph
from .pipeline.pipeline import Pipeline
from .random_streams import Random, TorchRandom
from .reproducible import reproducible_backward
from .run.callbacks import JSONL, Callback, Picture, TensorBoard
from .run.evaluate import evaluate
from .run.plot import draw_curves
from .run.records import read_log
from .run.run import Run
from .server import Inbox, Lifeline, Table, lifeline
from .strategies import (
    ADPSGD,
    EASGD,
    SSP,
    AllReduce,
    AsyncEASGD,
    AsyncParameterServer,
    DiLoCo,
    FedAvg,
    LocalSGD,
    NeighborAveraging,
    NoComm,
    ParameterServer,
    PeerAsync,
    PushSum,
    Strategy,
    graphs,
)
from .traffic import Traffic, counted
from .weights import WeightsDiverged, check_weights, same_bits
from .whole import WholeNet, WholeOptimizer

__all__ = [
    "ADPSGD",
    "EASGD",
    "JSONL",
    "SGD",
    "SSP",
    "Add",
    "Adam",
    "AdamW",
    "AllReduce",
    "AsyncEASGD",
    "AsyncParameterServer",
    "BFloat16Wire",
    "Callback",
    "Compression",
    "Conv2d",
    "CrossEntropyLoss",
    "Dataset",
    "DiLoCo",
    "Dropout",
    "FedAvg",
    "Flatten",
    "Float16Wire",
    "Graph",
    "Inbox",
    "Int8",
    "Layer",
    "Lifeline",
    "Linear",
    "Loader",
    "LocalSGD",
    "Loss",
    "MaxPool2d",
    "Mesh",
    "NeighborAveraging",
    "NoComm",
    "Output",
    "Parameter",
    "ParameterServer",
    "PeerAsync",
    "Picture",
    "Pipeline",
    "PowerSGD",
    "PushSum",
    "Random",
    "ReLU",
    "Run",
    "SampleError",
    "Sequential",
    "Strategy",
    "Table",
    "TensorBoard",
    "Text",
    "TopK",
    "TorchRandom",
    "Traffic",
    "WeightsDiverged",
    "WholeNet",
    "WholeOptimizer",
    "allreduce_tree",
    "characters",
    "check_weights",
    "checkpoint",
    "cnn",
    "communicator",
    "counted",
    "digits",
    "distribute",
    "draw_curves",
    "evaluate",
    "get_lr",
    "graphs",
    "is_death",
    "lifeline",
    "load_npz",
    "mlp",
    "read_log",
    "reproducible_backward",
    "same_bits",
    "schedules",
    "set_lr",
    "stratified_split",
    "tensor",
    "threads",
]
