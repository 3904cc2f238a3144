"""What train, evaluate and predict of one estimator share."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpudata.estimator._config import RunConfig
from tpudata.estimator._metrics import EvalProgram
from tpudata.estimator._mode_keys import ModeKeys
from tpudata.estimator._program import PredictProgram, Program, TrainProgram
from tpudata.estimator._signature import call_input_fn, call_model_fn, split_element
from tpudata.estimator._store import VariableStore

_PROGRAMS: Mapping[str, type[Program]] = {
    ModeKeys.TRAIN: TrainProgram,
    ModeKeys.EVAL: EvalProgram,
    ModeKeys.PREDICT: PredictProgram,
}


@dataclasses.dataclass
class Runtime:
    """The model, its variables and the programs built so far.

    Attributes:
        model_fn: the user's.
        model_dir: folder of checkpoints and event files.
        config: the RunConfig.
        params: the user's params.
        batch_sizes: the global batch size by mode, or None.
        strategy: runs the steps.
    """

    model_fn: Callable[..., Any]
    model_dir: str
    config: RunConfig
    params: Mapping[str, Any]
    batch_sizes: Mapping[str, int | None]
    strategy: Any

    def __post_init__(self) -> None:
        self.store = VariableStore(self.strategy)
        self._programs: list[tuple[str, Any, Program]] = []

    def dataset(self, input_fn: Any, mode: str) -> Any:
        """Call input_fn for `mode`; returns its checked `tf.data.Dataset`."""
        return call_input_fn(input_fn, mode, self._params(mode), self.config)

    def program(self, mode: str, element_spec: Any) -> Any:
        """Return the program of `mode` for such elements; it is built at the first call."""
        specs = split_element(element_spec)
        for known_mode, known_specs, program in self._programs:
            if known_mode == mode and known_specs == specs:
                return program
        program = _PROGRAMS[mode](
            call_model=self._call_model,
            mode=mode,
            specs=specs,
            strategy=self.strategy,
            store=self.store,
            seed=self.config.tf_random_seed,
        )
        self._programs.append((mode, specs, program))
        return program

    def _params(self, mode: str) -> dict[str, Any]:
        size = self.batch_sizes[mode]
        return {**copy.deepcopy(dict(self.params)), **({} if size is None else {"batch_size": size})}

    def _call_model(self, features: Any, labels: Any, mode: str) -> Any:
        params = {**self._params(mode), "use_tpu": False}
        call = tf.autograph.experimental.do_not_convert(call_model_fn)
        return call(self.model_fn, features, labels, mode, params, self.config)
