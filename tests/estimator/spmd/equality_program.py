"""One of two processes that train the model of test_equality: `python -m tests.estimator.spmd.equality_program DIR`."""

import sys
from pathlib import Path
from typing import Any

from tests.estimator.spmd.test_equality import STEPS, estimator_of, input_fn


def own_rows(params: dict[str, Any], input_context: Any) -> Any:
    """The rows of this process in each global batch."""
    rows, hosts = params["batch_size"], input_context.num_input_pipelines
    batches = input_fn({**params, "batch_size": rows * hosts})
    first = input_context.input_pipeline_id * rows
    return batches.map(
        lambda features, labels: ({"x": features["x"][first : first + rows]}, labels[first : first + rows])
    )


if __name__ == "__main__":
    estimator_of(Path(sys.argv[1]), 2).train(own_rows, max_steps=STEPS)
