"""The losses of a small training with DistributedDataParallel: ``mpiexec -n 4 python losses.py``.

Rank 0 prints them, the mean of all ranks' for each step, as JSON, and for each rank the first on its host.
"""

import json
import socket

import torch
import torch.distributed as dist
from training import cnn, mlp, same_everywhere, train

import collectives.torch

dist.init_process_group("collectives")
told = {}
for model, hook in ((mlp, None), (cnn, None), (mlp, collectives.torch.heap_hook)):
    found, net = train(model(), dist.group.WORLD, epochs=1, hook=hook and (lambda group, hook=hook: (group, hook)))
    same_everywhere(net)
    losses = torch.tensor(found)
    dist.all_reduce(losses, op=dist.ReduceOp.AVG)
    told[f"{model.__name__}, {'a hook' if hook else 'no hook'}"] = losses.tolist()
hosts = [None] * dist.get_world_size()
dist.all_gather_object(hosts, socket.gethostname())
if dist.get_rank() == 0:
    print(json.dumps({"losses": told, "hosts": [hosts.index(host) for host in hosts]}))
dist.destroy_process_group()
