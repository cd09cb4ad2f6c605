"""A look at the frames of all threads, while garbage is collected and threads begin and end."""

import subprocess
import sys
from pathlib import Path

import collectives

PROGRAM = """
import gc, sys, threading, time
from collectives.core import _core

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(1e-6)  # other threads run now, as when a tensor of torch is deleted

def begin_and_end():
    while not over:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        time.sleep(0.001)

def look():
    return looks()  # which makes an object of this frame

over = False
others = [threading.Thread(target=begin_and_end) for _ in range(2)]
for thread in others:
    thread.start()
gc.set_threshold(20)
looks = {looks}
for _ in range(300):
    gc.disable()
    for _ in range(30):
        Cycle()
    gc.enable()  # the next object makes the collector run
    frames = look()
    assert threading.get_ident() in frames and gc.isenabled()
    frames.clear()
over = True
for thread in others:
    thread.join()
gc.disable()
_core.current_frames()
assert not gc.isenabled()
print("ended")
"""


def test_a_look_at_all_frames_stops_no_thread():
    program = PROGRAM.replace("{looks}", "_core.current_frames")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n", done.stderr


def test_all_looks_at_frames_go_by_the_core():
    package = Path(collectives.__file__).parent
    assert [path.name for path in package.rglob("*.py*") if b"sys._current_frames()" in path.read_bytes()] == []
