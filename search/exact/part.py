"""A process of a climb in parts: ``python -m tinygpu.search.exact.part SOCKET``, by ``parts.py``.

It sends a HalfResult for each of its parts, an empty one where the time is over.  A thread listens,
so that it ends at once when the first process has ended.
"""

from __future__ import annotations

import gc
import pickle
import sys
import time
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

from tinygpu.deadline import Deadline
from tinygpu.search.exact.branch import Search
from tinygpu.search.exact.half import listen, told
from tinygpu.search.exact.pair import Failed, HalfResult
from tinygpu.search.exact.parts import PartTask
from tinygpu.space.space import Space

__all__ = ["serve"]


def serve(pipe: Connection) -> None:
    """Do the task that comes, and send what comes of each of its parts."""
    inbox: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=listen, args=(pipe, inbox), daemon=True).start()
    loading = True
    try:
        task: PartTask = pickle.loads(inbox.get())
        until = Deadline(task.end, time.monotonic)
        for number, fixed in enumerate(task.parts):
            space = Space(task.machine, task.problem, task.device, fixed=fixed)
            loading = False
            search = Search(space, task.k, task.spread, task.below)
            if number and until.passed():  # of each process at least one is climbed in
                pipe.send(HalfResult([], 0, 0))
                continue
            news = search.start(exact=False, until=until)
            pipe.send(HalfResult(search.entries(), news.admissible, search.scored))
    except Exception as error:  # whatever it is, the first process has to hear of it
        pipe.send(Failed(told(error), loading))


if __name__ == "__main__":
    gc.disable()  # a search keeps nearly all that it makes
    serve(Connection(int(sys.argv[1])))
