"""A worker process of the local runner: Beam's own, without its log of every connection and of errors that are shown anyway.

`python -m beam_jobs.run.worker DESCRIPTOR` ends by itself when the lifeline with this descriptor is cut, see
`beam_jobs.run.local_workers`. It watches the lifeline before it imports anything that takes time.
"""

import logging
import signal
import sys

from tpudata.console.loading import loading_without_gc
from tpudata.console.process import end_with_parent


def main() -> None:
    """Run Beam's worker until the runner ends."""
    # The argument is the descriptor of the lifeline.
    end_with_parent(int(sys.argv[1]))
    # A Ctrl-C goes to the whole group; the process that started the job ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # The garbage collector would scan the objects of Beam's modules again and again.
    with loading_without_gc():
        from apache_beam.runners.worker import sdk_worker_main

    logging.disable(logging.CRITICAL)
    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main()
