"""A worker process of the local runner: Beam's own, without its log of every connection and of errors that are shown anyway.

`python -m beam_jobs.worker PID` ends by itself when the process PID, which started it, is gone.
"""

import logging
import os
import signal
import sys
import threading
import time

from apache_beam.runners.worker import sdk_worker_main

_LOOK_EVERY_SECONDS = 0.2


def main() -> None:
    """Runs Beam's worker until the runner ends it, or is gone."""
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    logging.disable(logging.CRITICAL)
    # A Ctrl-C goes to the whole group; the process that started the job ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Beam also prints tracebacks here; each reaches the process that started the job, which raises and shows it.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sdk_worker_main.main(sys.argv)


def _end_with(parent: int) -> None:
    """Ends this process when it is no longer the child of `parent`, which a kill gives no chance to end it."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
