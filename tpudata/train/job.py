"""A job that can begin: the dataset is open, the estimator is made, and nothing is run or written yet."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from tpudata._gcs_blocks import set_block_size
from tpudata._tensorflow import require_tensorflow
from tpudata.console.quiet import quiet_loading
from tpudata.format import Dataset, Feature, open_dataset
from tpudata.models import check_model_name, get_model, make_model_fn
from tpudata.train.model import label_of, make_estimator, model_params
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.places import check_places, check_splits

if TYPE_CHECKING:
    from tpudata.estimator import TPUEstimator


@dataclasses.dataclass(frozen=True)
class Job:
    """A run that can begin: everything that a mode needs.

    Attributes:
        options: what to do.
        dataset: what it is done on.
        label: the feature that holds the labels, or None.
        params: of the model.
        estimator: the model.
    """

    options: TrainOptions
    dataset: Dataset
    label: Feature | None
    params: dict[str, Any]
    estimator: TPUEstimator


def prepare(options: TrainOptions) -> Job:
    """Open the dataset and make the estimator; nothing is run or written.

    Raises:
        TpudataError: see `tpudata.train.command.run_options`.
    """
    dataset = open_dataset(options.data)
    check_splits(options, dataset)
    check_places(options)
    check_model_name(options.model)
    _show_progress()
    # TensorFlow takes seconds to load: `--help` and mistakes in the flags do not wait for it.
    set_block_size()
    with quiet_loading():
        require_tensorflow("tpudata train")
    model = get_model(options.model)
    label = label_of(options, dataset)
    params = model_params(options, dataset, label)
    estimator = make_estimator(options, make_model_fn(model, params), params)
    return Job(options, dataset, label, params, estimator)


def _show_progress() -> None:
    """Send the estimator's log to stderr, unless the program that calls has arranged for it."""
    logger = logging.getLogger("tpudata")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
