"""Threads of one rank ask it by messages, and serve them, all at once: each letter is for one of them.

A thread that saw a letter and came too late to take it would wait for ever.
"""

import threading
import time

from mpi4py import MPI

from collectives.diagnostics import mpi_queries
from collectives.diagnostics.diagnosis import Answer

THREADS, SECONDS, ANSWERS = 4, 2.0, 200  # answers are as many as a slow machine has in that time, at least


class Asked:
    """What letters ask of a communicator."""

    def __init__(self):
        self.heard, self.left = {}, {}

    def describe(self, number=None):
        return Answer(0, begun=7)


comm, asked = MPI.COMM_SELF.Dup(), Asked()
post, wrong, answers = mpi_queries.MPIQueries(comm, 1, asked, {}), [], [0] * THREADS
end = time.monotonic() + SECONDS


def ask(place):
    try:
        while time.monotonic() < end:
            post.ask([0])
            post.serve()
            answer = post.answers.pop(0, None)
            if answer is not None:
                answers[place] += 1
                if answer != asked.describe():
                    wrong.append(f"another answer came: {answer}")
    except Exception as e:
        wrong.append(repr(e))


threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(SECONDS + 10)
if any(thread.is_alive() for thread in threads):
    wrong.append("a thread does not come back")
if sum(answers) < ANSWERS:
    wrong.append(f"only {answers} answers came")
for line in wrong[:10]:
    print(line, flush=True)
print(f"attack: {sum(answers)} trials, {len(wrong)} wrong", flush=True)
if wrong:
    comm.Abort(1)
