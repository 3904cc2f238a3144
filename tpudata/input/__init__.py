"""The reader library: turns datasets on disk into batches for a TPU. Needs TensorFlow.

docs/concepts/architecture.md shows the path of a record: files/ finds files, dataset/ features, options/
checks the options, order/ places each record in its row, decode/, image/ and text/ prepare records, and graph/ puts
these together as a tf.data graph.
"""

from tpudata._tensorflow import require_tensorflow

require_tensorflow("tpudata.input (make_input_fn)")

from tpudata.input.files.fixed_length_record_files import FixedLengthRecordFiles  # noqa: E402
from tpudata.input.files.text_line_files import TextLineFiles  # noqa: E402
from tpudata.input.files.tfrecord_files import TFRecordFiles  # noqa: E402
from tpudata.input.image.augment import RandAugment  # noqa: E402
from tpudata.input.image.crop import CentreCrop, TrainCrop  # noqa: E402
from tpudata.input.image.mix import CutMix, MixUp  # noqa: E402
from tpudata.input.image.normalize import Normalize  # noqa: E402
from tpudata.input.jax_batches import as_jax  # noqa: E402
from tpudata.input.keras_batches import as_keras  # noqa: E402
from tpudata.input.make import make_input_fn  # noqa: E402
from tpudata.input.mixture import Mixture  # noqa: E402
from tpudata.input.numpy_batches import as_numpy  # noqa: E402
from tpudata.input.options.images import Images  # noqa: E402
from tpudata.input.options.pad import Pad  # noqa: E402
from tpudata.input.options.reading import Reading  # noqa: E402
from tpudata.input.options.service import DataService  # noqa: E402
from tpudata.input.options.tokens import Tokens  # noqa: E402

__all__ = [
    "CentreCrop",
    "CutMix",
    "DataService",
    "FixedLengthRecordFiles",
    "Images",
    "MixUp",
    "Mixture",
    "Normalize",
    "Pad",
    "RandAugment",
    "Reading",
    "TFRecordFiles",
    "TextLineFiles",
    "Tokens",
    "TrainCrop",
    "as_jax",
    "as_keras",
    "as_numpy",
    "make_input_fn",
]
