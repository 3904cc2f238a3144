"""A folder of checkpoints, read without the model."""

import tensorflow as tf

from tpudata.estimator.api.errors import CheckpointError, CheckpointNotFoundError
from tpudata.estimator.state import checkpoints
from tpudata.estimator.state.checkpoint import Checkpoint, read_tensor
from tpudata.tensor_types import Array


class ModelDir:
    """The part of an estimator that reads its model_dir.

    Args:
        model_dir: the folder.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir

    @property
    def model_dir(self) -> str:
        """Folder of checkpoints and event files."""
        return self._model_dir

    def eval_dir(self, name: str | None = None) -> str:
        """Return the folder with the summaries of the evaluation `name`; None is an evaluation without a name."""
        return str(tf.io.gfile.join(self.model_dir, f"eval_{name}" if name else "eval"))

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint; None if there is none.

        Raises:
            CheckpointError: the folder's list of checkpoints is damaged, or the newest checkpoint does not exist.
            StorageError: the list cannot be read.
        """
        newest = checkpoints.find_latest(self.model_dir)
        return None if newest is None else newest.prefix

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the newest checkpoint, sorted.

        Raises:
            CheckpointError: there is no checkpoint, or it is damaged.
        """
        return sorted(self._open_newest().open_reader().get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> Array:
        """Return the value (NumPy) of a variable in the newest checkpoint.

        Raises:
            CheckpointError: there is no checkpoint, or it lacks the variable or is damaged.
        """
        newest = self._open_newest()
        reader = newest.open_reader()
        if not reader.has_tensor(name):
            raise CheckpointNotFoundError(f"{newest.prefix} has no variable {name!r}. See get_variable_names().")
        return read_tensor(reader, newest.prefix, name)

    def _open_newest(self) -> Checkpoint:
        """Return the newest checkpoint; CheckpointError without one."""
        newest = checkpoints.find_latest(self.model_dir)
        if newest is None:
            raise CheckpointError(f"There is no checkpoint in {self.model_dir} yet. Train first.")
        return newest
