"""A worker process of the local runner: Beam's own, without its log of every connection and of errors that are shown anyway."""

import logging
import os
import sys

from apache_beam.runners.worker import sdk_worker_main


def main() -> None:
    """Runs Beam's worker until the runner ends it."""
    logging.disable(logging.CRITICAL)
    # Beam also prints tracebacks here; each reaches the process that started the job, which raises and shows it.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main()
