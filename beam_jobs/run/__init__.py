"""Running a pipeline: runners, worker processes and progress."""
