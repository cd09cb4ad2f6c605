"""Several threads attach the first callback of a group at the same time: one server runs all of them, in one order."""

import sys
import threading

from collectives.torch.work import Callbacks

THREADS, TRIALS = 4, 100
sys.setswitchinterval(1e-6)
wrong = 0
for trial in range(TRIALS):
    callbacks, together, ran = Callbacks(str(trial)), threading.Barrier(THREADS), []

    def attach(i, callbacks=callbacks, together=together, ran=ran):
        together.wait()
        callbacks.run(lambda: ran.append((i, threading.get_ident())))

    threads = [threading.Thread(target=attach, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    servers = [thread for thread in threading.enumerate() if thread.name == "collectives-callbacks"]
    callbacks.close()
    for server in servers:
        server.join(0.1)
        if server.is_alive():  # one that nobody ends
            callbacks.close()
    wrong += len(servers) != 1 or sorted(i for i, _ in ran) != list(range(THREADS)) or len({t for _, t in ran}) != 1
print(f"attack: {TRIALS} trials, {wrong} wrong")
