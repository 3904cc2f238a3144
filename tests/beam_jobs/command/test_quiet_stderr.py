import sys

import pytest

from beam_jobs.command.quiet_stderr import without_worker_tracebacks

OF_BEAM = (
    'Traceback (most recent call last):\n  File "/x/apache_beam/runners/worker/sdk_worker.py", line 1\nValueError\n'
)
OF_OTHERS = 'Traceback (most recent call last):\n  File "/x/mine.py", line 1\nValueError\n'


def test_tracebacks_of_workers_are_left_out_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    with without_worker_tracebacks():
        for text in ("a", OF_BEAM, "b", OF_OTHERS, OF_BEAM):
            print(text, file=sys.stderr)
        sys.stderr.flush()
        assert sys.stderr.encoding == before.encoding
    assert sys.stderr is before
    assert capsys.readouterr().err == f"a\nb\n{OF_OTHERS}\n"
