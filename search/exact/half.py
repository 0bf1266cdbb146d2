"""The second process of a search: ``python -m tinygpu.search.exact.half SOCKET``, by ``pair.py``.

It searches the half of a space that it is told of over the socket.  A thread listens, so that what
the first process sends never waits, and that this one ends at once when that one has ended.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from traceback import format_exception

from tinygpu.errors import TinyGpuError
from tinygpu.search.exact.branch import Search
from tinygpu.search.exact.pair import Failed, HalfResult
from tinygpu.space.space import Space

__all__ = ["listen", "serve", "told"]


def serve(pipe: Connection) -> None:
    """Do the task that comes, and send what comes of it: News, counts of batches, a HalfResult."""
    inbox: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=listen, args=(pipe, inbox), daemon=True).start()
    loading = True
    try:
        task = pickle.loads(inbox.get())
        space = Space(task.machine, task.problem, task.device, fixed=task.fixed)
        loading = False
        search = Search(space, task.k, task.spread, task.below)
        news = search.start(deal=task.deal)
        pipe.send(news)
        search.learn(pickle.loads(inbox.get()))
        search.finish(lambda done, _: pipe.send(done))
        pipe.send(HalfResult(search.entries(), news.admissible, search.scored))
    except Exception as error:  # whatever it is, the first process has to hear of it
        pipe.send(Failed(told(error), loading))


def listen(pipe: Connection, inbox: SimpleQueue[bytes]) -> None:
    """Put what comes into the inbox; end this process when nobody can send any more."""
    try:
        while True:
            inbox.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)  # nobody waits for the result


def told(error: Exception) -> Exception:
    """Return the error, or one that says the same and survives pickling.

    One that is no TinyGpuError is a fault of the code: it says where in this process it came up.
    """
    try:
        pickle.loads(pickle.dumps(error))
        sent = error
    except Exception:  # an error's own constructor runs here
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, TinyGpuError):
        sent.add_note("in the second process of the search:\n" + "".join(format_exception(error)))
    return sent


if __name__ == "__main__":
    gc.disable()  # a search keeps nearly all that it makes
    serve(Connection(int(sys.argv[1])))
