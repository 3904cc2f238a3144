"""The reader library: datasets on disk become batches that a TPU takes. Needs TensorFlow.

Which record stands in which row of which batch is arithmetic (order), and so is which rows are a host's (hosts). The way of a
record: ranges of shards, checked (source, frames) -> taken apart, by numpy where records are of fixed size (columns) -> windows,
read ahead and mixed (feed) -> TensorFlow (groups) -> parsed and decoded (parse, image), or all decoded and kept before (cache):
`records`.
Then images cropped and augmented (image_steps), the user's transform, batches of one static shape (batch), mixed (mix): `elements`.
`input_fn` checks what is asked, `pipeline` puts these in order.
"""

from tpudata._tensorflow import require_tensorflow

require_tensorflow("tpudata.input (make_input_fn)")

from tpudata.input.dataset.record_files import FixedLengthRecordFiles, TextLineFiles, TFRecordFiles  # noqa: E402
from tpudata.input.image.augment import RandAugment  # noqa: E402
from tpudata.input.image.crop import CentreCrop, TrainCrop  # noqa: E402
from tpudata.input.image.mix import CutMix, MixUp  # noqa: E402
from tpudata.input.image.normalize import Normalize  # noqa: E402
from tpudata.input.input_fn import make_input_fn  # noqa: E402
from tpudata.input.keras_batches import as_keras  # noqa: E402
from tpudata.input.numpy_batches import as_numpy  # noqa: E402
from tpudata.input.options.service import DataService  # noqa: E402

__all__ = [
    "CentreCrop",
    "CutMix",
    "DataService",
    "FixedLengthRecordFiles",
    "MixUp",
    "Normalize",
    "RandAugment",
    "TFRecordFiles",
    "TextLineFiles",
    "TrainCrop",
    "as_keras",
    "as_numpy",
    "make_input_fn",
]
