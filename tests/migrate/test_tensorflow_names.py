"""The command's list of TensorFlow names against the installed TensorFlow: a program uses only some of them."""

import pytest

from scripts._v1_names import list_names
from tpudata.migrate.tensorflow_names import Api, load_tensorflow_names

# Names that TensorFlow 2.21 has and 2.20 lacks: one of v1, and a few of both.
NEWER = {"NoneTensorSpec", "image.decode_jxl", "io.decode_jxl"}


def test_lists_the_names_of_the_installed_tensorflow() -> None:
    carried = load_tensorflow_names()
    apis = {"v1": Api.V1, "v2": Api.V2, "both": Api.BOTH}
    installed = list_names()
    for section, api in apis.items():
        names = {name for name, found in carried.apis.items() if found is api}
        differing = {name for name in names ^ installed[section] if "float4_e2m1fn" not in name}
        assert differing <= NEWER, section
    words = {f"{name}.{word}" for name, found in carried.keywords.items() for word in found}
    assert words == installed["keyword"]


@pytest.mark.parametrize(
    ("name", "api"),
    [
        ("nn.dropout", Api.BOTH),
        ("gfile.Exists", Api.V1),
        ("app.flags.FLAGS.x", Api.V1),
        ("train.AdamOptimizer.minimize", Api.V1),
        ("losses.hinge_loss", Api.V1),
        ("losses.BinaryCrossentropy", Api.V2),
        ("data.Dataset.from_tensors", Api.BOTH),
        ("nn", Api.BOTH),
        ("mul", Api.NEITHER),
        ("__version__", Api.NOT_COVERED),
        ("keras.layers.Dense", Api.NOT_COVERED),
        ("experimental.numpy.array", Api.NOT_COVERED),
    ],
)
def test_finds_the_api_of_a_name(name: str, api: Api) -> None:
    assert load_tensorflow_names().find_api(tuple(name.split("."))) is api
