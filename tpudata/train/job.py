"""Preparation of a run, before any step or file of it: open the dataset, check the options, and make the estimator."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING, Any

from tpudata._gcs_billing import set_billing_header
from tpudata._tensorflow import require_tensorflow
from tpudata.console.loading import loading_without_gc
from tpudata.console.quiet import quiet_loading
from tpudata.format import Dataset, Feature, open_dataset
from tpudata.models import check_model_name, get_model, make_model_fn
from tpudata.train.input import CheckedInput, make_evaluation_input, make_serving_features, make_training_input
from tpudata.train.model import find_label, make_estimator, make_model_params
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.history import History, Section
from tpudata.train.outputs.places import check_places, check_splits
from tpudata.train.outputs.record import Configuration, describe_configuration
from tpudata.train.range_check import make_value_ranges

if TYPE_CHECKING:
    from tpudata.estimator import TPUEstimator
    from tpudata.train.warm_start import WarmStart

_log = logging.getLogger("tpudata")


@dataclasses.dataclass(frozen=True)
class Job:
    """A prepared run: everything that a mode needs.

    Attributes:
        options: options of the run.
        dataset: the opened dataset.
        label: feature with the dataset's label, or None.
        params: params of the model.
        estimator: the estimator with the model.
    """

    options: TrainOptions
    dataset: Dataset
    label: Feature | None
    params: dict[str, Any]
    estimator: TPUEstimator

    @functools.cached_property
    def configuration(self) -> Configuration:
        """The full configuration, as a JSON object."""
        return describe_configuration(self.options, self.dataset, self.params)

    @functools.cached_property
    def first_step(self) -> int:
        """Number of steps that are done when the run begins."""
        return read_global_step(self.estimator) or 0

    @functools.cached_property
    def history(self) -> History:
        """History of the model's folder when the run begins."""
        return History.read(self.options.model_dir)

    @functools.cached_property
    def section(self) -> Section:
        """Section of the history that this run trains."""
        return self.history.find_section(self.first_step, self.configuration)

    @functools.cached_property
    def training_input(self) -> CheckedInput:
        """Input of training."""
        ranges = make_value_ranges(self.options, self.dataset, self.options.train_split, self.label, self.params)
        return make_training_input(self.options, self.dataset, self.section, ranges)

    @functools.cached_property
    def evaluation_input(self) -> CheckedInput:
        """Input of evaluation and prediction."""
        ranges = make_value_ranges(self.options, self.dataset, self.options.eval_split, self.label, self.params)
        if self.options.mode == "predict":
            # Labels are not used, and may be unknown.
            ranges = [value_range for value_range in ranges if not value_range.is_label]
        return make_evaluation_input(self.options, self.dataset, ranges)


def prepare_job(options: TrainOptions) -> Job:
    """Open the dataset, check splits and paths, and make the estimator, which joins the run's processes; no step runs.

    Raises:
        TpudataError: see `tpudata.train.command.run_options`.
    """
    dataset = open_dataset(options.data)
    check_splits(options, dataset)
    check_places(options)
    check_model_name(options.model)
    _show_progress()
    # Loaded after the checks above: TensorFlow takes seconds. Its gs:// file system reads the header as it loads.
    set_billing_header()
    with quiet_loading(), loading_without_gc():
        require_tensorflow("tpudata train")
    model = get_model(options.model)
    label = find_label(options, dataset)
    params = make_model_params(options, dataset, label)
    model_fn = make_model_fn(model, params)
    warm_start = _make_warm_start(options)
    estimator = make_estimator(options, model_fn, params, None if warm_start is None else warm_start.settings)
    if warm_start is not None:
        # After `make_estimator`: this starts TensorFlow, which a process of a cluster must not do before its estimator has joined
        # the others. It fills the list of variables in `warm_start.settings`, which the estimator reads when it trains.
        warm_start.choose(model_fn, params, make_serving_features(options, dataset))
    return Job(options, dataset, label, params, estimator)


def _make_warm_start(options: TrainOptions) -> WarmStart | None:
    """Return the requested warm start; None if none is requested, or if training continues from a checkpoint in model_dir."""
    if options.warm_start is None:
        return None
    from tpudata.estimator.state.checkpoints import find_latest
    from tpudata.train.warm_start import WarmStart

    newest = find_latest(options.model_dir)
    if newest is None:
        return WarmStart(options)
    _log.info("--warm-start is not needed: training continues from %s.", newest.prefix)
    return None


def read_global_step(estimator: TPUEstimator, checkpoint: str | None = None) -> int | None:
    """Return the global step in a checkpoint, by default the estimator's newest; None if the estimator has no checkpoint."""
    from tpudata.estimator.state.checkpoint import Checkpoint

    path = checkpoint or estimator.latest_checkpoint()
    return None if path is None else Checkpoint.open(path).read_step()


def _show_progress() -> None:
    """Send tpudata's log to stderr, from INFO on, unless the calling program has set a handler."""
    logger = logging.getLogger("tpudata")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
