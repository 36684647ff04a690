"""The process that forks the ranks ends without a word, whenever it is told to."""

from __future__ import annotations

import subprocess
import sys

_TOLD_WHILE_ENDING = """
import os, signal
from multiprocessing import Pipe
from minitrain.training import worker

os.killpg = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
(heard, news), (launcher, rank) = Pipe(), Pipe()
pipe, printed = os.dup(rank.fileno()), os.open(os.devnull, os.O_WRONLY)
rank.close()
launcher.close()
worker._fork_ranks(news, [(pipe, printed)])
"""


def test_a_launcher_that_ends_ranks_which_have_ended_is_answered_by_silence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TOLD_WHILE_ENDING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
